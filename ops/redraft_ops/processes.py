"""Child processes that a command starts, and their end: every one is stopped, with all that it started
itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from redraft_ops.errors import ChildEnded

GRACE_SECONDS = 15.0


@dataclass
class Child:
    """One running redraft process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise ChildEnded if the process is gone."""
        code = self.process.poll()
        if code is not None:
            tail = " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])
            raise ChildEnded(
                f"the {self.name} process ended with code {code}: {tail or 'no output'} ({self.log})"
            )


@dataclass
class Children:
    """A group of processes, stopped in reverse order at the end of a `with` block, whatever ended it."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)

    def start(self, name: str, arguments: Sequence[str], threads: int | None = None) -> Child:
        """Start `redraft ARGUMENTS` with its output in `<folder>/<name>.log`.

        Its working directory is `folder`, so a `redraft.toml` of the caller's does not leak in. The process
        gets a
        session of its own: a Ctrl-C reaches us alone, and we end the children in order.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        limits = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "redraft_ops", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **self.environment, **limits, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raise ChildEnded if any of them is gone."""
        for child in self.children:
            child.check()

    def stop(self) -> None:
        """SIGTERM to each, newest first; after the grace time SIGKILL to each session."""
        with _uninterrupted():
            for child in reversed(self.children):
                _signal(child.process.pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            for child in reversed(self.children):
                _wait(child.process, deadline)
                # What the process started itself shares its session and must not outlive it.
                _signal_group(child.process.pid)
            self.children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143), so that `with` blocks clean up as they do after Ctrl-C."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C while we clean up must not leave processes behind."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
