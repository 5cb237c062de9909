"""Usage and per-request metrics, both from raw counts: a rate without data is null, never NaN."""

from __future__ import annotations

from typing import Any

from redraft_serving.engine.interface import RequestStatistics
from redraft_serving.http.generation import Generation


def usage_of(generation: Generation, prompt_tokens: int) -> dict[str, Any]:
    """OpenAI's usage. Each prompt counts once, whatever n is."""
    completion = generation.completion_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


def metrics_of(generation: Generation) -> dict[str, Any]:
    """vLLM's per-request metrics; with several choices, their counts together."""
    found = [output.statistics for output in generation.outputs if output.statistics is not None]
    decode = sum(one.decode_seconds for one in found)
    emitted = sum(one.emitted for one in found)
    gaps = emitted - len(found)
    first = generation.first_token
    return {
        "time_to_first_token_ms": None if first is None else _ms(first - generation.submitted),
        "generation_time_ms": _ms(decode),
        "queue_time_ms": _ms(max((one.queue_seconds for one in found), default=0.0)),
        "mean_itl_ms": _ratio(decode * 1000, gaps),
        "tokens_per_second": _ratio(gaps, decode),
        "speculative_decoding": speculation_of(found, generation.requests[0].domain),
    }


def speculation_of(found: list[RequestStatistics], domain: str) -> dict[str, Any]:
    """vLLM's `speculative_decoding` with our counts beside its own."""
    rounds = sum(one.rounds for one in found)
    proposed = sum(one.proposed for one in found)
    tested = sum(one.tested for one in found)
    accepted = sum(one.accepted for one in found)
    histogram = _add([one.accepted_histogram for one in found])
    versions = [version for one in found for version, _ in one.draft_versions]
    return {
        "mean_acceptance_length": _ratio(sum(one.emitted for one in found), rounds),
        "draft_acceptance_rate": _ratio(accepted, proposed),
        "acceptance_histogram": histogram,
        "num_spec_steps": sum(histogram),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_tested_tokens": tested,
        "acceptance_rate": _ratio(accepted, tested),
        "draft_version": versions[-1] if versions else None,
        "domain": domain,
    }


def _add(histograms: list[tuple[int, ...]]) -> list[int]:
    length = max((len(one) for one in histograms), default=0)
    return [sum(one[j] for one in histograms if j < len(one)) for j in range(length)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
