"""Notices that acceptance has changed, within a few tested tokens.

Two one-sided CUSUM tests (Page 1954) on the first position: one for a rate whose hits have halved, one for a
rate whose misses have halved. Their log likelihood ratios are sums over what was tested since the change
would have begun, so an alarm also says which observations to believe.
"""

from __future__ import annotations

from math import log

LOG_2 = log(2.0)


class ChangeDetector:
    """Watches hits and misses against an expected rate."""

    __slots__ = ("down", "down_hits", "down_tests", "threshold", "up", "up_hits", "up_tests")

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
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
        if self.up >= self.threshold:
            return self.up_hits, self.up_tests
        if self.down >= self.threshold:
            return self.down_hits, self.down_tests
        return None

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
