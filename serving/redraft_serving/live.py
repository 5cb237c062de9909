"""Live acceptance as it moves: a short and a long moving average of accepted/tested per domain.

What falls in the short one and not yet in the long one has happened lately. Time is counted in tested tokens,
so that a quiet night forgets nothing and a busy minute doesn't count more than its tokens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import lt

from redraft_serving.engine.interface import CHAMPION, DraftStatistics

Rates = dict[str, float | int]


@dataclass(slots=True)
class _Average:
    """An exponentially weighted mean over tokens, without a bias towards where it began."""

    half_life: float
    total: float = 0.0
    weight: float = 0.0

    def add(self, accepted: int, tested: int) -> None:
        kept = 0.5 ** (tested / self.half_life)
        self.total = kept * self.total + (1 - kept) * accepted / tested
        self.weight = kept * self.weight + (1 - kept)

    @property
    def rate(self) -> float:
        return self.total / self.weight


@dataclass(slots=True)
class _Domain:
    short: _Average
    long: _Average
    tested: int = 0
    version: int | str | None = None
    seen: tuple[int, int, int] = field(default=(0, 0, 0))
    """rounds, tested and accepted of `version` at the last look."""
    moved: float = field(default_factory=time.monotonic)
    """When something was tested last."""

    def look(self, draft: DraftStatistics) -> None:
        now = (draft.rounds, draft.tested, draft.accepted)
        # A version's counters begin anew when it comes to serve, also where it has served before.
        anew = draft.version != self.version or any(map(lt, now, self.seen))
        _, tested_before, accepted_before = (0, 0, 0) if anew else self.seen
        self.version, self.seen = draft.version, now
        tested, accepted = draft.tested - tested_before, draft.accepted - accepted_before
        if tested > 0:
            self.tested, self.moved = self.tested + tested, time.monotonic()
            self.short.add(accepted, tested)
            self.long.add(accepted, tested)


class LiveAcceptance:
    """Fed by a look at the engine's statistics now and then; half-lives are in tested tokens.

    Only the champion's arm counts: a trial must not look like a fall. Safe to share between threads.
    """

    def __init__(self, short_half_life: float = 12_000.0, long_half_life: float = 200_000.0) -> None:
        self._half_lives = short_half_life, long_half_life
        self._domains: dict[str, _Domain] = {}
        self._lock = threading.Lock()

    def look(self, drafts: Iterable[DraftStatistics]) -> None:
        """Take in what was tested since the last look; `drafts` of `engine.statistics()`."""
        with self._lock:
            for draft in drafts:
                if draft.arm == CHAMPION:
                    self._domain(draft.domain).look(draft)

    def view(self) -> dict[str, Rates]:
        """Domain -> {"short": rate, "long": rate, "tested": n, "idle_seconds": since the last tested token}:
        "acceptance" of the heartbeat's details. A domain without tested tokens is left out.
        """
        now = time.monotonic()
        with self._lock:
            return {
                name: {
                    "short": found.short.rate,
                    "long": found.long.rate,
                    "tested": found.tested,
                    "idle_seconds": round(now - found.moved, 1),
                }
                for name, found in self._domains.items()
                if found.tested
            }

    def _domain(self, name: str) -> _Domain:
        if name not in self._domains:
            short, long = self._half_lives
            self._domains[name] = _Domain(_Average(short), _Average(long))
        return self._domains[name]
