"""What a drift run saw: answers in order, what happened between them, and when acceptance was back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from redraft_ops.demo.client import Answer

WINDOW = 40
"""Requests that the moving acceptance is taken over."""


@dataclass(frozen=True)
class Mark:
    """Something that happened, after so many answers."""

    answers: int
    kind: Literal["moved", "tried", "serves"]
    text: str


@dataclass
class DriftResult:
    """Filled while the run goes on; its readers see a consistent list."""

    answers: list[Answer] = field(default_factory=list)
    """In the order of their end."""
    marks: list[Mark] = field(default_factory=list)
    moved_at: int | None = None
    """Answers before the traffic moved."""
    level_before: float | None = None
    """Acceptance before the move."""
    seconds: float = 0.0

    def served(self) -> list[int]:
        """Answers before each new draft began to serve."""
        return [mark.answers for mark in self.marks if mark.kind == "serves"]

    def lowest(self) -> float | None:
        """Lowest moving acceptance over a whole window after the move."""
        if self.moved_at is None:
            return None
        rates = moving_acceptance(self.answers)[self.moved_at + WINDOW :]
        return min((rate for rate in rates if rate is not None), default=None)

    def recovered_after(self, share: float) -> int | None:
        """Requests after the move until a draft trained since then served and the moving acceptance was at
        `share` of its level before; None: not yet, or never.
        """
        if self.moved_at is None or self.level_before is None:
            return None
        newer = [at for at in self.served() if at > self.moved_at]
        if not newer:
            return None
        rates, wanted = moving_acceptance(self.answers), share * self.level_before
        back = (at for at in range(newer[0], len(rates)) if (rates[at] or 0.0) >= wanted)
        found = next(back, None)
        return None if found is None else found + 1 - self.moved_at

    @property
    def failures(self) -> list[str]:
        """Errors of requests."""
        return [answer.error for answer in self.answers if answer.error is not None]

    def to_json(self, share: float) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "requests": len(self.answers),
            "failed": len(self.failures),
            "window": WINDOW,
            "moved_at": self.moved_at,
            "level_before": self.level_before,
            "lowest": self.lowest(),
            "level_at_the_end": next(iter(moving_acceptance(self.answers)[-1:]), None),
            "recovered_share": share,
            "recovered_after": self.recovered_after(share),
            "marks": [[mark.answers, mark.kind, mark.text] for mark in self.marks],
            "seconds": round(self.seconds, 1),
        }


def moving_acceptance(answers: Sequence[Answer], window: int = WINDOW) -> list[float | None]:
    """Accepted / tested over the last `window` answers, at each answer; None while nothing was tested."""
    rates: list[float | None] = []
    for end in range(1, len(answers) + 1):
        part = answers[max(0, end - window) : end]
        tested = sum(answer.tested for answer in part)
        rates.append(sum(answer.accepted for answer in part) / tested if tested else None)
    return rates
