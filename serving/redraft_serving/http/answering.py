"""The path that chat and plain completions share: check, submit, answer whole or as a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from redraft_serving.http.context import Context
from redraft_serving.http.domains import DOMAIN_HEADER
from redraft_serving.http.errors import BadRequest, Unavailable
from redraft_serving.http.faces import Face
from redraft_serving.http.fields import refuse_unsupported
from redraft_serving.http.generation import Generation
from redraft_serving.http.sampling import check_amount, requests_of
from redraft_serving.http.schemas import GenerationBody
from redraft_serving.http.streaming import ClientGone, EventStream, answer_or_gone, event, guarded
from redraft_serving.http.usage import metrics_of, usage_of

Prompt = tuple[int, ...]


def check_request(body: GenerationBody, context: Context) -> None:
    """What can be said of a request before its prompt is read. Raises ApiError."""
    if context.draining:
        raise Unavailable("The server is stopping; try another one.")
    context.model.check_name(body.model)
    refuse_unsupported(body.model_extra)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options may be given only where stream is true.", "stream_options")
    check_amount(body, context)


async def answer(
    request: Request, context: Context, body: GenerationBody, prompts: Sequence[Prompt], face: Face
) -> Response:
    """Generate, and write the choices down in the form of `face`."""
    domain = context.domains.resolve(request.headers.get(DOMAIN_HEADER))
    request_id = face.prefix + uuid.uuid4().hex
    prediction = await context.prompts.prediction(body.prediction)
    requests = requests_of(body, context, request_id, domain, prompts, prediction)
    generation = Generation(context.engine, requests)
    generation.submit()
    head = {"id": request_id, "created": int(time.time()), "model": context.model.name}
    if body.stream:
        events = _events(generation, context, face, {**head, "object": face.chunk_object}, body, prompts)
        return EventStream(guarded(events), lambda: _finish(generation, context))
    try:
        await answer_or_gone(request, generation.collect())
    except ClientGone:
        return Response(status_code=499)
    finally:
        _finish(generation, context)
    return JSONResponse({**head, "object": face.object, **_whole(generation, context, face, prompts)})


def _finish(generation: Generation, context: Context) -> None:
    generation.close()
    context.latencies.observe(generation)


def _metrics(generation: Generation, context: Context) -> dict[str, Any]:
    return metrics_of(generation, context.policies.card(generation.requests[0].domain))


def _whole(generation: Generation, context: Context, face: Face, prompts: Sequence[Prompt]) -> dict[str, Any]:
    return {
        "choices": [face.whole(index, output) for index, output in enumerate(generation.outputs)],
        "usage": usage_of(generation, prompts),
        "metrics": _metrics(generation, context),
    }


async def _events(
    generation: Generation,
    context: Context,
    face: Face,
    head: dict[str, Any],
    body: GenerationBody,
    prompts: Sequence[Prompt],
) -> AsyncIterator[bytes]:
    """One event per round of a choice, then usage and metrics where they are asked for."""
    options = body.stream_options
    include_usage = bool(options and options.include_usage)
    continuous = bool(options and options.continuous_usage_stats)

    def chunk(choices: list[dict[str, Any]]) -> bytes:
        usage = usage_of(generation, prompts) if continuous else None
        return event(
            {**head, "choices": choices, **({"usage": usage} if include_usage or continuous else {})}
        )

    opened: set[int] = set()
    async for index, emission in generation:
        if index not in opened:
            opened.add(index)
            if face.opening is not None:
                yield chunk([{"index": index, **face.opening}])
        piece = face.piece(index, emission)
        if piece is not None:
            yield chunk([piece])
    if include_usage:
        usage = usage_of(generation, prompts)
        yield event({**head, "choices": [], "usage": usage, "metrics": _metrics(generation, context)})
