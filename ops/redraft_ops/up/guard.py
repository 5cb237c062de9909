"""Ends the parts when their supervisor is gone without a word, as after SIGKILL.

A second process holds the other end of a pipe. It knows the process groups of the parts; when the pipe ends,
it asks them to end, and kills what has not ended after a while. It has a session of its own, so a Ctrl-C of
the terminal does not reach it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

logger = logging.getLogger("redraft_ops.up")

GRACE_SECONDS = 15.0
POLL_SECONDS = 0.1


class Guard:
    """The supervisor's side: `with Guard() as guard:` and then the groups to watch."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def watch(self, group: int) -> None:
        """A group that has to end with us."""
        self._groups.add(group)
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        """A group that has ended."""
        self._groups.discard(group)
        self._say(f"-{group}")

    def step(self) -> None:
        """Start it again if somebody has ended it."""
        if self._process is None or self._process.poll() is not None:
            logger.warning("guard: died; started again")
            self._start()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "redraft_ops.up.guard"], stdin=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            logger.warning("guard: could not be started (%s)", error)
            return
        for group in self._groups:
            self._say(f"+{group}")

    def _say(self, line: str) -> None:
        """A guard that has died is noticed at the next `step`, and told everything anew."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError:
            return


def listen(lines: Iterable[str]) -> set[int]:
    """The groups that are left when the pipe ends."""
    groups: set[int] = set()
    for line in lines:
        number = int(line[1:])
        if line.startswith("+"):
            groups.add(number)
        else:
            groups.discard(number)
    return groups


def end(groups: set[int], grace_seconds: float = GRACE_SECONDS) -> None:
    """SIGTERM to all, and SIGKILL to those that are still there after the grace time."""
    _signal(groups, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while (groups := _signal(groups, None)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    _signal(groups, signal.SIGKILL)


def _signal(groups: set[int], number: signal.Signals | None) -> set[int]:
    """The groups that were there to take the signal; None only asks."""
    there = set()
    for group in groups:
        try:
            os.killpg(group, number or 0)
            there.add(group)
        except (ProcessLookupError, PermissionError):
            continue
    return there


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end(listen(sys.stdin))
