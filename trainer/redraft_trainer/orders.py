"""The training process's side of room for serving: it waits between two steps while it is told to.

The parent writes one word per line to our standard input. The pipe ends when the parent does, however it
dies, and so do we.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

GO, WAIT = "go", "wait"
PARENT_GONE = 3
"""Exit code of a process whose parent died."""
STANDARD_INPUT = 0
_STAGES = {"validate": "train"}
"""Stages that are told apart, and timed together."""


class Orders:
    """What the parent said last. Without a word from it: go."""

    def __init__(self) -> None:
        self._go = threading.Event()
        self._go.set()

    def follow(self) -> None:
        """Listen in a thread until the parent is gone, and end with it."""
        threading.Thread(target=self._listen, daemon=True, name="parent-watch").start()

    def _listen(self) -> None:
        unread = b""
        # Not through sys.stdin: its buffer would hide a line that came with another.
        while piece := os.read(STANDARD_INPUT, 1024):
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                self.hear(line.decode(errors="replace"))
        os._exit(PARENT_GONE)

    def hear(self, word: str) -> None:
        """Take one order; a word that is none is ignored."""
        if word == WAIT:
            self._go.clear()
        elif word == GO:
            self._go.set()

    @property
    def waiting(self) -> bool:
        """Whether the parent wants us to wait."""
        return not self._go.is_set()

    def wait(self) -> float:
        """Return when we may go on; the seconds that it took."""
        started = time.monotonic()
        self._go.wait()
        return time.monotonic() - started


class Teller:
    """Tells the parent about each step, and waits there while serving needs the machine.

    Every step of the training and every batch of the measuring is told of, so a pause begins between two of
    them, and what comes next goes on from the very same state. Counts what each stage took, pauses left out.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None], orders: Orders) -> None:
        self._write = write
        self._orders = orders
        self._stage: str | None = None
        self._since = time.monotonic()
        self.seconds: dict[str, float] = defaultdict(float)
        self.paused: dict[str, float] = defaultdict(float)
        """Seconds of waiting, by stage."""

    def __call__(self, event: dict[str, Any]) -> None:
        """Tell one event; returns when the training may go on."""
        self._count(str(event["stage"]))
        told = {**event, "peak_mb": peak_mb()}
        self._write(told)
        if self._orders.waiting:
            self._write({**told, "paused": True})
            self.paused[self._stage or ""] += self._orders.wait()
            self._since = time.monotonic()
            self._write({**told, "paused": False})

    def _count(self, stage: str) -> None:
        """What has passed since the last event belongs to the stage that it told of."""
        now = time.monotonic()
        if self._stage is not None:
            self.seconds[self._stage] += now - self._since
        self._stage, self._since = _STAGES.get(stage, stage), now

    def facts(self) -> dict[str, Any]:
        """For the round's result: seconds by stage, seconds of waiting, peak memory in MB."""
        self._count(self._stage or "")
        return {
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items() if stage},
            "paused_seconds": round(sum(self.paused.values()), 3),
            "child_peak_mb": peak_mb(),
        }


def peak_mb() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, Linux in kilobytes.
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))
