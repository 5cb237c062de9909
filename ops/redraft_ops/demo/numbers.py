"""From answers to rates, intervals, speeds and break-even. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redraft_trainer.intervals import Interval, ratio_interval

from redraft_ops.demo.client import Answer

TWO_SIDED_95 = 0.025


@dataclass(frozen=True)
class LiveCounts:
    """What the served requests themselves report, with the interval clustered by request."""

    requests: int
    tested: int
    acceptance: Interval | None
    """accepted / tested; None where nothing was tested."""
    mean_acceptance_length: float | None
    """emitted / rounds, the bonus token included."""


def live(answers: Iterable[Answer]) -> LiveCounts:
    """Acceptance of finished requests. The interval's unit is the request: its tokens rise and fall
    together.
    """
    good = [answer for answer in answers if answer.error is None and answer.rounds]
    tested = sum(answer.tested for answer in good)
    counted = [answer for answer in good if answer.tested]
    acceptance = (
        ratio_interval([a.accepted for a in counted], [a.tested for a in counted], TWO_SIDED_95)
        if tested
        else None
    )
    lengths = [(a.tokens, a.mean_acceptance_length) for a in good if a.mean_acceptance_length]
    emitted = sum(tokens for tokens, _ in lengths)
    rounds = sum(tokens / length for tokens, length in lengths)
    return LiveCounts(len(good), tested, acceptance, emitted / rounds if rounds else None)


@dataclass(frozen=True)
class Speed:
    """Decoding speed of probes sent one at a time, from the first chunk to the last."""

    tokens_per_second: float | None
    seconds_per_round: float | None
    """Time between chunks; a chunk carries the tokens of one round."""


def speed(answers: Sequence[Answer]) -> Speed:
    """Ratio of sums over the probes. The tokens of the first chunk are not in its time, so they are taken
    off pro rata.
    """
    timed = [answer for answer in answers if answer.error is None and len(answer.arrivals) > 1]
    seconds = sum(answer.arrivals[-1] - answer.arrivals[0] for answer in timed)
    if not seconds:
        return Speed(None, None)
    intervals = sum(len(answer.arrivals) - 1 for answer in timed)
    tokens = sum(answer.tokens * (len(answer.arrivals) - 1) / len(answer.arrivals) for answer in timed)
    return Speed(tokens / seconds, seconds / intervals)


def longest_pause(answers: Iterable[Answer], begin: float, end: float) -> float:
    """Longest time between two chunks of one stream, among those that overlap [begin, end]."""
    gaps = (gap for answer in answers for gap in answer.gaps)
    return max((stop - start for start, stop in gaps if stop >= begin and start <= end), default=0.0)


def usual_pause(answers: Iterable[Answer]) -> float:
    """Median time between two chunks of a stream."""
    gaps = sorted(stop - start for answer in answers for start, stop in answer.gaps)
    return gaps[len(gaps) // 2] if gaps else 0.0


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens that a round of `k` proposals emits: (1 - a^(k+1)) / (1 - a).

    For acceptance that is independent from position to position (Leviathan et al. 2023, eq. 1).
    """
    return sum(acceptance**j for j in range(k + 1))


def break_even(seconds_per_round: float | None, seconds_per_token: float | None, k: int) -> float | None:
    """Acceptance at which speculation is as fast as plain decoding: expected_tokens(a, k) = round time /
    token time.

    Both times are measured on one stream. None where no acceptance is enough (a round costs more than k + 1
    plain
    tokens) or a time is missing; 0 where a round costs no more than one plain token.
    """
    if not seconds_per_round or not seconds_per_token:
        return None
    needed = seconds_per_round / seconds_per_token
    if needed <= 1.0:
        return 0.0
    if needed > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < needed else (low, middle)
    return high
