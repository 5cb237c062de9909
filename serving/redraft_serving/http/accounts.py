"""A request's end, whatever it is: its slots are freed, its times and its trial told, its log line filled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from redraft_serving.engine.interface import RequestStatistics
from redraft_serving.http.admission import Admission
from redraft_serving.http.context import Context
from redraft_serving.http.generation import Generation

_ANSWERS = ("stop", "length")


def settle(
    request: Request,
    context: Context,
    admission: Admission,
    generation: Generation,
    prompts: Sequence[tuple[int, ...]],
) -> None:
    """Called once per request that reached the engine."""
    generation.close()
    context.latencies.observe(generation)
    ended = [
        output.statistics
        for output in generation.outputs
        if output.statistics is not None and output.finish_reason in _ANSWERS
    ]
    if context.trials is not None and ended:
        context.trials.finished(admission.domain, admission.arm, ended)
    if context.settings.log_requests:
        request.state.facts = _facts(context, admission, generation, ended, prompts)


def _facts(
    context: Context,
    admission: Admission,
    generation: Generation,
    ended: Sequence[RequestStatistics],
    prompts: Sequence[tuple[int, ...]],
) -> dict[str, Any]:
    """What the request's log line says: counts and times, and texts only where they are asked for."""
    first = generation.first_token
    facts: dict[str, Any] = {
        "answer": generation.request_id,
        "domain": admission.domain,
        "arm": admission.arm,
        "prompt_tokens": sum(len(ids) for ids in prompts),
        "completion_tokens": generation.completion_tokens,
        "finish": ",".join(output.finish_reason or "none" for output in generation.outputs),
        "queue_ms": _ms(max((one.queue_seconds for one in ended), default=None)),
        "first_token_ms": _ms(None if first is None else first - generation.submitted),
        "decode_ms": _ms(sum(one.decode_seconds for one in ended) if ended else None),
    }
    if context.settings.log_prompts:
        facts["prompts"] = json.dumps([context.prompts.decode(ids) for ids in prompts])
    return facts


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1000:.1f}"
