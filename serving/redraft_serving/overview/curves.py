"""Acceptance and time per token over time, from raw counts between two looks. What has no data is None."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redraft_serving.overview.history import DomainLook, Look, Mark

WINDOW_TOKENS = 512
"""A point covers the looks before it until so many tokens were tested (or timed): two standard errors are at
most 4.5 points of acceptance then."""
LEAST_TOKENS = 32
_WINDOW_ROUNDS = 128
_LEAST_ROUNDS = 8
IDLE_SECONDS = 60.0
"""A curve ends where nothing was counted for so long."""

_COUNTED = ("rounds", "proposed", "tested", "accepted", "emitted")

Point = tuple[float, DomainLook]


def curves(
    looks: Sequence[Look], marks: Sequence[Mark], domain: str, now: float, now_ms: int
) -> dict[str, Any]:
    """The history of one domain as columns of one length, times in milliseconds since 1970.

    `acceptance_rate` is accepted / tested of one version, never across a swap. `seconds_per_token` is the
    decoding time of finished choices over their tokens, as their clients saw it. `proposed_per_round` is the
    K that was had: of rounds that proposed something, 0 where the domain is off.
    """
    points = [(look.at, look.domains[domain]) for look in looks if domain in look.domains]
    found = [look for _, look in points]
    counts = [look.counts for look in found]
    accepted = [(one.tested, float(one.accepted)) for one in counts]
    proposed = [(one.rounds, float(one.proposed)) for one in counts]
    decoded = [(look.decode.tokens, look.decode.seconds) for look in found]
    starts, whole = list(_starts(found)), [0] * len(points)
    per_round = _rates(points, proposed, whole, _WINDOW_ROUNDS, _LEAST_ROUNDS)
    return {
        "time_ms": [_ms(at, now, now_ms) for at, _ in points],
        "acceptance_rate": list(_rates(points, accepted, starts)),
        "seconds_per_token": list(_rates(points, decoded, whole)),
        "proposed_per_round": [
            0.0 if look.state == "off" else mean for look, mean in zip(found, per_round, strict=True)
        ],
        "num_speculative_tokens": [look.num_speculative_tokens for look in found],
        "state": [look.state for look in found],
        "version": [look.version for look in found],
        **{name: [getattr(one, name) for one in counts] for name in _COUNTED},
        "decode_seconds": [round(look.decode.seconds, 4) for look in found],
        "decoded_tokens": [look.decode.tokens for look in found],
        "marks": [
            {"time_ms": _ms(mark.at, now, now_ms), "version": mark.version, "before": mark.before}
            for mark in marks
        ],
    }


def _starts(found: Sequence[DomainLook]) -> Iterator[int]:
    """For each look, the earliest one that its version may be compared with: the last before it began."""
    start = 0
    for index, look in enumerate(found):
        if index and look.version != found[index - 1].version:
            start = index - 1
        yield start


def _rates(
    points: Sequence[Point],
    sums: Sequence[tuple[int, float]],
    starts: Sequence[int],
    window: int = WINDOW_TOKENS,
    least: int = LEAST_TOKENS,
) -> Iterator[float | None]:
    """Growth of the second sum over that of the first, over the newest looks with enough of it."""
    back = 0
    grew_at = points[0][0] if points else 0.0
    for index, (at, _) in enumerate(points):
        count, value = sums[index]
        if index and count > sums[index - 1][0]:
            grew_at = at
        back = max(back, starts[index])
        while back + 1 < index and count - sums[back + 1][0] >= window:
            back += 1
        grown = count - sums[back][0]
        if grown < least or at - grew_at > IDLE_SECONDS:
            yield None
        else:
            yield round((value - sums[back][1]) / grown, 6)


def _ms(at: float, now: float, now_ms: int) -> int:
    return now_ms - round((now - at) * 1000)
