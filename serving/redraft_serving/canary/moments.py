"""Evidence of one arm: sums over its finished requests. A request is one cluster, all its choices together.

Tokens of one request are alike, so that the spread has to be taken between requests, not between tokens. The
sums of squares and products are all that the variance of a ratio needs, and sums can be added over workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over requests. `seconds` is decoding time, summed over the choices as the tokens are."""

    requests: float = 0.0
    tested: float = 0.0
    accepted: float = 0.0
    emitted: float = 0.0
    seconds: float = 0.0
    tested_tested: float = 0.0
    tested_accepted: float = 0.0
    accepted_accepted: float = 0.0
    emitted_emitted: float = 0.0
    emitted_seconds: float = 0.0
    seconds_seconds: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / tested; None without data."""
        return self.accepted / self.tested if self.tested > 0 else None

    @property
    def seconds_per_token(self) -> float | None:
        """Decoding time of one choice per token that it emitted; None without data."""
        return self.seconds / self.emitted if self.emitted > 0 else None


_NAMES = tuple(field.name for field in fields(Moments))


def of_request(tested: int, accepted: int, emitted: int, seconds: float) -> Moments:
    """The moments of one request."""
    return Moments(
        1,
        tested,
        accepted,
        emitted,
        seconds,
        tested * tested,
        tested * accepted,
        accepted * accepted,
        emitted * emitted,
        emitted * seconds,
        seconds * seconds,
    )


def merged(parts: Iterable[Moments]) -> Moments:
    """The sum of several workers' moments."""
    return sum(parts, Moments())


def to_dict(moments: Moments) -> dict[str, float]:
    """As it crosses a process border."""
    return dict(zip(_NAMES, astuple(moments), strict=True))


def from_dict(values: Mapping[str, float]) -> Moments:
    """The inverse of `to_dict`; what is missing, negative or not finite counts as nothing."""
    numbers = (float(values.get(name, 0.0)) for name in _NAMES)
    return Moments(*(value if math.isfinite(value) and value >= 0 else 0.0 for value in numbers))
