"""The loop that keeps the parts alive, and their orderly end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from redraft_ops.errors import UsageError
from redraft_ops.up.guard import Guard
from redraft_ops.up.output import rotate
from redraft_ops.up.part import TICK_SECONDS, Part
from redraft_ops.up.service import Service

logger = logging.getLogger("redraft_ops.up")

HURRIED_SECONDS = 2.0
"""Grace of every part once a second signal has come."""
ROTATE_EVERY_SECONDS = 5.0


@dataclass
class Signals:
    """How often SIGTERM or SIGINT has come."""

    count: int = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count signals for the time of a `with` block."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [(number, signal.signal(number, self._note)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


@dataclass
class Supervisor:
    """Runs services until a signal comes. Files `<name>.log` in `folder` take their output.

    Raises UsageError where a part ends because of a wrong setting.
    """

    services: Sequence[Service]
    folder: Path
    log_bytes: int
    logs_kept: int
    signals: Signals = field(default_factory=Signals)

    def run(self) -> None:
        """Start everything, keep it alive, and end it in order after the first signal, or after an error."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.signals.caught(), Guard() as guard:
            parts = [Part(one, self.folder / f"{one.name}.log", guard) for one in self.services]
            try:
                self._keep(parts, guard)
            finally:
                self._stop(parts)

    def _keep(self, parts: list[Part], guard: Guard) -> None:
        rotated = time.monotonic()
        while not self.signals.count:
            for part in self._startable(parts):
                words = part.step(time.monotonic())
                if words is not None:
                    raise UsageError(f"{part.service.name} can't start: {words}")
            guard.step()
            if time.monotonic() - rotated > ROTATE_EVERY_SECONDS:
                rotated = time.monotonic()
                self._rotate(parts)
            time.sleep(TICK_SECONDS)

    def _startable(self, parts: list[Part]) -> list[Part]:
        """What may run: at the start the others wait for the first ones, later nobody waits for anybody."""
        first = [part for part in parts if part.service.first]
        return parts if all(part.been_ready for part in first) else first

    def _rotate(self, parts: list[Part]) -> None:
        for part in parts:
            rotate(part.log, self.log_bytes, self.logs_kept)

    def _stop(self, parts: list[Part]) -> None:
        for part in parts:
            if self.signals.count <= 1:
                part.ask_to_end()
                self._await([part], part.service.grace_seconds)
        self._hurry(parts)

    def _await(self, parts: list[Part], seconds: float) -> None:
        """Wait for the ends of parts; a second signal cuts it short. What is late is killed."""
        deadline = time.monotonic() + seconds
        while not all(part.ended() for part in parts):
            if time.monotonic() > deadline:
                for part in parts:
                    part.kill()
            elif self.signals.count > 1:
                return
            time.sleep(TICK_SECONDS)

    def _hurry(self, parts: list[Part]) -> None:
        """All that is left at once: after a second signal, or nothing."""
        left = [part for part in parts if not part.ended()]
        for part in left:
            part.ask_to_end()
        deadline = time.monotonic() + HURRIED_SECONDS
        while not all(part.ended() for part in left) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)
        for part in left:
            part.kill()
