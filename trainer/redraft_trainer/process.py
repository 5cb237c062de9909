"""Start a round's training process, follow its progress, and end it when the round ends.

Training has a process of its own: its memory, precision, CUDA context and crashes end with it. It writes
one JSON object per line to standard output; whatever else it or its libraries print goes to a log file.
Over its standard input it hears whether it may go on or has to make room for serving.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from redraft_trainer.context import Progress
from redraft_trainer.errors import (
    ChildFailed,
    DiskFull,
    Diverged,
    NoUsableSamples,
    OutOfMemory,
    RoundFailed,
    RoundTimeout,
)
from redraft_trainer.failures import DISK_ADVICE, MEMORY_ADVICE
from redraft_trainer.launch import BY_SIGNAL, LOG_FILE, RESULT_FILE, SPEC_FILE, launch_command, threads
from redraft_trainer.orders import GO, WAIT
from redraft_trainer.room import Room
from redraft_trainer.settings import TrainerSettings

__all__ = ["LOG_FILE", "SPEC_FILE", "run_child", "threads"]
EVENT_PREFIX = "redraft-event "
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
NO_ROOM_BYTES = 64 << 10
"""Less than this on a disk, and not even an error's text may have found room there."""
_KINDS: dict[str, type[RoundFailed]] = {
    kind.__name__: kind for kind in (Diverged, NoUsableSamples, OutOfMemory, DiskFull)
}


def run_child(
    folder: Path,
    settings: TrainerSettings,
    *,
    device: str,
    progress: Progress,
    check: Callable[[], None],
    limit_seconds: float,
    room: Room | None = None,
) -> dict[str, Any]:
    """Train and measure as `folder`/spec.json says; answers what the process wrote into result.json.

    `check` and `progress`, this one with the last event where there is no new one, are called about twice a
    second and may raise to end the training. `room` says whether it may go on; what it waits is added to
    the limit. Raises Diverged, OutOfMemory, DiskFull, ChildFailed with the last lines of the log, or
    RoundTimeout. The process is gone when this returns or raises.
    """
    (folder / RESULT_FILE).unlink(missing_ok=True)
    last: dict[str, Any] = {"stage": "start"}
    with (
        (folder / LOG_FILE).open("ab", buffering=0) as log,
        _running(launch_command(folder, settings, device), log) as process,
    ):
        lines = _lines(process, log)
        limit = _Limit(limit_seconds, room)
        orders = _Orders(process, room)
        while True:
            check()
            limit.check()
            orders.give(paused=bool(last.get("paused")))
            try:
                event = lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                # A callback that wants to end the round must not wait until a model is loaded.
                event = last
            if event is None:
                break
            last = event
            progress(last)
        while (code := process.poll()) is None:  # it says no more, and may hang at its end
            check()
            limit.check()
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    return _result(folder, code, last)


@contextmanager
def _running(command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """The process in a group of its own, which is ended with all that it started."""
    # The training process ends when its standard input does: also if this process is killed outright.
    # A byte that is no text must not end the reading: with a full pipe it would wait for ever.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # an order that nobody read
                    pipe.close()


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


class _Limit:
    """The time that the training may take, the waiting for serving left out."""

    def __init__(self, seconds: float, room: Room | None) -> None:
        self._seconds, self._room = seconds, room
        self._deadline = time.monotonic() + seconds

    def check(self) -> None:
        """Raise RoundTimeout past the limit."""
        paused = self._room.paused_seconds if self._room is not None else 0.0
        if time.monotonic() <= self._deadline + paused:
            return
        waited = f" beside {paused:.0f} s of waiting for serving" if paused else ""
        raise RoundTimeout(
            f"the training took more than {self._seconds:.0f} s{waited}; "
            "lower max_steps or raise round_time_limit_seconds"
        )


class _Orders:
    """Tells the training process when it has to wait and when it may go on."""

    def __init__(self, process: subprocess.Popen[str], room: Room | None) -> None:
        self._process, self._room = process, room
        self._said = GO

    def give(self, paused: bool) -> None:
        """Ask whether there is room, and pass the answer on where it has changed."""
        if self._room is None or self._process.stdin is None:
            return
        word = GO if self._room.may_run(paused) else WAIT
        if word != self._said:
            self._said = word
            with suppress(OSError):  # it has ended; its last words are read below
                self._process.stdin.write(f"{word}\n")
                self._process.stdin.flush()


def _lines(process: subprocess.Popen[str], log: IO[bytes]) -> queue.SimpleQueue[dict[str, Any] | None]:
    """The process's events as they come, then None; what is no event goes to the log."""
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def pump() -> None:
        with suppress(ValueError):  # closed under us, as the round has ended
            for line in process.stdout or ():
                if line.startswith(EVENT_PREFIX):
                    events.put(json.loads(line.removeprefix(EVENT_PREFIX)))
                    continue
                with suppress(OSError):  # the disk is full; to stop reading would stop the process too
                    log.write(line.encode(errors="replace"))
        events.put(None)

    threading.Thread(target=pump, daemon=True, name="training-output").start()
    return events


def _result(folder: Path, code: int, last: dict[str, Any]) -> dict[str, Any]:
    path = folder / RESULT_FILE
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if "error" in result:
        raise _KINDS.get(result["kind"], ChildFailed)(result["error"])
    if code == 0 and result:
        return result
    if shutil.disk_usage(folder).free < NO_ROOM_BYTES:
        raise DiskFull(f"the disk of {folder.parent} is full: {DISK_ADVICE}")
    number = -code if code < 0 else code - BY_SIGNAL
    if number > 0:
        raise _ended_by(number, last, folder)
    raise ChildFailed(f"the training process ended with code {code} and no result: {_last_words(folder)}")


def _ended_by(number: int, last: dict[str, Any], folder: Path) -> ChildFailed:
    where = f"stage {last['stage']}" + (f", step {last['step']}" if "step" in last else "")
    held = f" and {last['peak_mb']} MB at its peak" if "peak_mb" in last else ""
    told = f"the training process was ended by signal {number} in {where}{held}"
    if number == signal.SIGKILL:
        return OutOfMemory(
            f"{told}; likely out of memory, unless somebody killed it: {MEMORY_ADVICE} "
            f"(last words: {_last_words(folder)})"
        )
    return ChildFailed(f"{told}: {_last_words(folder)}")


def _last_words(folder: Path, most: int = 400) -> str:
    text = (folder / LOG_FILE).read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-most:] or f"its log {LOG_FILE} is empty"
