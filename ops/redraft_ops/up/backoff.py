"""How long to wait before a part that died is started again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A part that lived this long starts again from the shortest wait."""


@dataclass
class Backoff:
    """1, 2, 4 ... 60 seconds, and from the beginning again after a minute of life."""

    deaths: int = 0

    def after(self, lived_seconds: float) -> float:
        """The wait in seconds after a life of that length."""
        if lived_seconds >= STEADY_SECONDS:
            self.deaths = 0
        wait = min(MOST_SECONDS, FIRST_SECONDS * 2.0**self.deaths)
        # Beyond the longest wait nothing changes any more, and the power must not grow for months.
        self.deaths = min(self.deaths + 1, 16)
        return wait
