"""Usage and per-request metrics, both from raw counts: a rate without data is null, never NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from redraft_serving.engine.interface import GenerationRequest, RequestStatistics
from redraft_serving.http.generation import Generation


def usage_of(generation: Generation, prompts: Sequence[tuple[int, ...]], held: int = 0) -> dict[str, Any]:
    """OpenAI's usage. Each prompt counts once, whatever n is; details are there when all choices have ended.
    `held`: tokens that a stream has not sent yet.

    `completion_tokens` are the tokens of the answer alone. OpenAI adds a prediction's rejected tokens, which
    it bills; here nobody pays for them, and `max_tokens` and tokens per second stay what they say.
    """
    prompt, completion = sum(len(ids) for ids in prompts), generation.completion_tokens - held
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    ended = [output.statistics for output in generation.outputs if output.statistics is not None]
    if len(ended) < len(generation.outputs):
        return usage
    usage["prompt_tokens_details"] = {"cached_tokens": _cached(ended, len(prompts))}
    if generation.requests[0].prediction_ids:
        usage["completion_tokens_details"] = _prediction_tokens(ended)
    return usage


def _cached(ended: list[RequestStatistics], prompts: int) -> int:
    """Prompt tokens that no choice had to compute: choices of one prompt find each other's work."""
    n = len(ended) // prompts
    return sum(min(one.cached_tokens for one in ended[at : at + n]) for at in range(0, len(ended), n))


def _prediction_tokens(ended: list[RequestStatistics]) -> dict[str, int]:
    """Of the client's own prediction: what drafts proposed stands in `metrics`."""
    return {
        "accepted_prediction_tokens": sum(one.prediction_accepted for one in ended),
        "rejected_prediction_tokens": sum(one.prediction_rejected for one in ended),
    }


def metrics_of(generation: Generation, policy: dict[str, Any] | None = None) -> dict[str, Any]:
    """vLLM's per-request metrics, with `prefill_time_ms` beside them; with several choices, their counts
    together. `policy`: what the policy makes of the request's domain at its end, and why.

    `generation_time_ms` is decoding alone: queue, prefill and generation follow each other.
    """
    found = [output.statistics for output in generation.outputs if output.statistics is not None]
    decode = sum(one.decode_seconds for one in found)
    emitted = sum(one.emitted for one in found)
    gaps = emitted - len(found)
    first = generation.first_token
    return {
        "time_to_first_token_ms": None if first is None else _ms(first - generation.submitted),
        "generation_time_ms": _ms(decode),
        "queue_time_ms": _ms(max((one.queue_seconds for one in found), default=0.0)),
        "prefill_time_ms": _ms(sum(one.prefill_seconds for one in found)),
        "mean_itl_ms": _ratio(decode * 1000, gaps),
        "tokens_per_second": _ratio(gaps, decode),
        "speculative_decoding": {**speculation_of(found, generation.requests[0]), "policy": policy},
    }


def speculation_of(found: list[RequestStatistics], request: GenerationRequest) -> dict[str, Any]:
    """vLLM's `speculative_decoding` with our counts beside its own. `proposers`: rounds by proposer."""
    rounds = sum(one.rounds for one in found)
    proposed = sum(one.proposed for one in found)
    tested = sum(one.tested for one in found)
    accepted = sum(one.accepted for one in found)
    histogram = _add([one.accepted_histogram for one in found])
    versions = [version for one in found for version, _ in one.draft_versions]
    proposers = sum((Counter(one.proposers) for one in found), Counter[str]())
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
        "domain": request.domain,
        "num_speculative_tokens": request.num_speculative_tokens,
        "proposers": dict(proposers),
    }


def _add(histograms: list[tuple[int, ...]]) -> list[int]:
    length = max((len(one) for one in histograms), default=0)
    return [sum(one[j] for one in histograms if j < len(one)) for j in range(length)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
