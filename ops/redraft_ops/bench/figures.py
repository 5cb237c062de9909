"""Statistics of a run: pure functions of what the clients saw. Times go out in milliseconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from redraft_ops.bench.answers import Answer, Block
from redraft_ops.bench.plan import Goal

SHOWN_ERRORS = 3


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` of 100 lie, linear between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float | None:
    """The median; None without values."""
    return statistics.median(values) if values else None


def figures(blocks: Sequence[Block], goal: Goal) -> dict[str, Any]:
    """All figures of one configuration. Rates come from counts, never from averages of averages."""
    answers = [answer for block in blocks for answer in block.answers]
    good = [answer for answer in answers if answer.error is None]
    seconds = sum(block.seconds for block in blocks)
    rates = [block.tokens_per_second for block in blocks if block.tokens_per_second is not None]
    tokens, rounds = sum(answer.tokens for answer in good), sum(answer.rounds for answer in good)
    tested, accepted = sum(answer.tested for answer in good), sum(answer.accepted for answer in good)
    return {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "errors": sorted({answer.error for answer in answers if answer.error is not None})[:SHOWN_ERRORS],
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": median(rates),
        "tokens_per_second_overall": _ratio(tokens, seconds),
        "decode_tokens_per_second": median([1 / gap for a in good if (gap := a.mean_gap)]),
        "requests_per_second": _ratio(len(good), seconds),
        "rounds": rounds,
        "tested": tested,
        "accepted": accepted,
        "acceptance_rate": _ratio(accepted, tested),
        "mean_acceptance_length": _ratio(tokens, rounds),
        **_quantiles("ttft_ms", [a.first_token for a in good if a.first_token is not None]),
        **_quantiles("itl_ms", [gap for answer in good for gap in answer.token_gaps]),
        **_quantiles("chunk_gap_ms", [gap for answer in good for gap in answer.chunk_gaps]),
        **_quantiles("request_ms", [answer.seconds for answer in good]),
        **_goodput(answers, seconds, goal),
    }


def paired(own: Sequence[Block], base: Sequence[Block]) -> dict[str, float | None]:
    """How many times as fast as `base`, block by block on the same prompts: median and quartiles."""
    pairs = [(a.tokens_per_second, b.tokens_per_second) for a, b in zip(own, base, strict=True)]
    ratios = [mine / other for mine, other in pairs if mine is not None and other is not None]
    return {
        "ratio": median(ratios),
        "ratio_p25": percentile(ratios, 25),
        "ratio_p75": percentile(ratios, 75),
    }


def meets(answer: Answer, goal: Goal) -> bool:
    """True if an answer came whole, its first token in time and the others at the wanted pace.

    An answer of one token has no pace to miss.
    """
    first, gap = answer.first_token, answer.mean_gap
    if answer.error is not None or first is None:
        return False
    in_time = goal.first_token_ms is None or first * 1000 <= goal.first_token_ms
    return in_time and (goal.token_ms is None or gap is None or gap * 1000 <= goal.token_ms)


def _goodput(answers: Sequence[Answer], seconds: float, goal: Goal) -> dict[str, float | None]:
    """Requests per second that met the goal (Zhong et al. 2024, "DistServe"), and their share."""
    if not goal.stated:
        return {"goodput_requests_per_second": None, "within_goal": None}
    met = sum(meets(answer, goal) for answer in answers)
    return {
        "goodput_requests_per_second": _ratio(met, seconds),
        "within_goal": _ratio(met, len(answers)),
    }


def _quantiles(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    found = {f"{name}_p{percent}": percentile(seconds, percent) for percent in (50, 95, 99)}
    return {key: None if value is None else value * 1000 for key, value in found.items()}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
