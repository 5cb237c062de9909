"""What measuring a draft on held-out continuations yields: the evidence that the gate decides on.

Standard library and numpy only. Reports cross the border between a training round and its child as plain
dictionaries (`to_dict`, `from_dict`).
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft_trainer.intervals import Interval, ratio_interval

ROUNDING = 1e-3
"""Slack per token that float sums of probabilities may exceed 1 by."""


@dataclass(frozen=True)
class RequestScore:
    """One held-out continuation: `overlap` is the sum over its `tokens` of the measured acceptance there.

    `cluster` names what is independent of everything else, such as the prompt when one prompt was sent many
    times; left empty, the request is its own cluster. Raises ValueError for numbers that cannot be an
    acceptance (negative, above one per token, not finite).
    """

    request_id: str
    tokens: int
    overlap: float
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(
                f"Request {self.request_id} has {self.tokens} tokens; a count cannot be negative."
            )
        if not math.isfinite(self.overlap) or not 0 <= self.overlap <= self.tokens * (1 + ROUNDING):
            raise ValueError(
                f"Request {self.request_id} has an overlap of {self.overlap} on {self.tokens} tokens; it "
                "must lie "
                "between 0 and the number of tokens. The draft's probabilities are not finite or not "
                "normalised."
            )

    @property
    def unit(self) -> str:
        """The independent unit this request belongs to."""
        return self.cluster or self.request_id


@dataclass(frozen=True)
class PositionScore:
    """Measured acceptance at answer positions `first` to `last` (counted from 0, both included)."""

    first: int
    last: int
    tokens: int
    overlap: float

    @property
    def acceptance_rate(self) -> float | None:
        """Mean acceptance at these positions, or None without tokens."""
        return self.overlap / self.tokens if self.tokens else None


@dataclass(frozen=True)
class MeasureReport:
    """Scores of one draft on a set of held-out continuations, and what could not be scored.

    `uncovered_tokens` are positions where the logged top-k did not cover the request's processed law;
    `skipped` are samples that could not be replayed at all. `positions` are for pictures, not for the gate.
    """

    scores: tuple[RequestScore, ...]
    uncovered_tokens: int = 0
    skipped: int = 0
    positions: tuple[PositionScore, ...] = ()

    @property
    def tokens(self) -> int:
        """Scored positions."""
        return sum(score.tokens for score in self.scores)

    @property
    def requests(self) -> int:
        """Distinct requests with at least one scored position."""
        return len({score.request_id for score in self.scores if score.tokens})

    @property
    def acceptance_rate(self) -> float | None:
        """Measured acceptance: sum of overlaps over sum of tokens, or None without tokens."""
        tokens = self.tokens
        return math.fsum(score.overlap for score in self.scores) / tokens if tokens else None

    def clusters(self) -> dict[str, tuple[int, float]]:
        """Per independent unit: (tokens, overlap), units without tokens left out."""
        sums: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for score in self.scores:
            if score.tokens:
                tokens, overlap = sums[score.unit]
                sums[score.unit] = (tokens + score.tokens, overlap + score.overlap)
        return dict(sums)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Two-sided interval of the acceptance rate, clustered by request, inside [0, 1].

        For pictures and tables. Without at least two requests it is all of [0, 1]; its estimate is NaN
        without tokens.
        """
        sums = self.clusters().values()
        tokens, overlaps = [float(n) for n, _ in sums], [overlap for _, overlap in sums]
        found = ratio_interval(overlaps, tokens, tail=(1.0 - confidence) / 2)
        return Interval(found.estimate, max(0.0, found.low), min(1.0, found.high))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MeasureReport":
        """The report that `to_dict` wrote."""
        return cls(
            scores=tuple(RequestScore(**score) for score in data["scores"]),
            uncovered_tokens=data["uncovered_tokens"],
            skipped=data["skipped"],
            positions=tuple(PositionScore(**position) for position in data["positions"]),
        )


def position_scores(overlaps: Iterable[Sequence[float]]) -> tuple[PositionScore, ...]:
    """Acceptance by answer position, pooled over requests in doubling bins 0, 1, 2-3, 4-7, 8-15, ...

    `overlaps` holds, per request, the measured acceptance at each of its positions from the first on;
    NaN marks a position that was not scored.
    """
    tokens: dict[int, int] = defaultdict(int)
    sums: dict[int, float] = defaultdict(float)
    for request in overlaps:
        for position, overlap in enumerate(request):
            if not math.isnan(overlap):
                tokens[position.bit_length()] += 1
                sums[position.bit_length()] += overlap
    return tuple(PositionScore((1 << b) >> 1, (1 << b) - 1, tokens[b], sums[b]) for b in sorted(tokens))
