"""Notices that acceptance has changed, within a few tested tokens.

Two one-sided CUSUM tests (Page 1954) on the first position: one for a rate whose hits have halved, one for a
rate whose misses have halved. Their log likelihood ratios are sums over what was tested since the change
would have begun, so an alarm also says which observations to believe.
"""

from __future__ import annotations

from math import log

LOG_2 = log(2.0)


WARIER = 4.0
"""Added to the threshold by each alarm: text in short bursts of easy and hard is no change of level."""
WARIEST = 16.0
CALMER = 0.5 ** (1 / 1000)
"""Factor of what was added, per test."""


class ChangeDetector:
    """Watches hits and misses against an expected rate."""

    __slots__ = ("_wary", "down", "down_hits", "down_tests", "threshold", "up", "up_hits", "up_tests")

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._wary = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget: the next observation may begin a change."""
        self.up = self.down = 0.0
        self.up_hits = self.up_tests = self.down_hits = self.down_tests = 0

    def observe(self, hit: bool, rate: float) -> tuple[int, int] | None:
        """One tested token. On an alarm: (hits, tests) since the change began; else None."""
        rate = min(0.98, max(0.02, rate))
        if hit:
            up, down = log((1.0 + rate) / (2.0 * rate)), -LOG_2
        else:
            up, down = -LOG_2, log((1.0 - rate / 2.0) / (1.0 - rate))
        self._add_up(up, hit)
        self._add_down(down, hit)
        self._wary *= CALMER
        if max(self.up, self.down) < self.threshold + self._wary:
            return None
        self._wary = min(WARIEST, self._wary + WARIER)
        return (self.up_hits, self.up_tests) if self.up > self.down else (self.down_hits, self.down_tests)

    def _add_up(self, score: float, hit: bool) -> None:
        self.up += score
        if self.up <= 0.0:
            self.up, self.up_hits, self.up_tests = 0.0, 0, 0
        else:
            self.up_hits += hit
            self.up_tests += 1

    def _add_down(self, score: float, hit: bool) -> None:
        self.down += score
        if self.down <= 0.0:
            self.down, self.down_hits, self.down_tests = 0.0, 0, 0
        else:
            self.down_hits += hit
            self.down_tests += 1
