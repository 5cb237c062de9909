"""The path that chat and plain completions share: submit, answer whole or as a stream, account for it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from redraft_serving.engine.interface import Emission
from redraft_serving.http.accounts import settle
from redraft_serving.http.admission import Admission
from redraft_serving.http.context import Context
from redraft_serving.http.errors import ApiError
from redraft_serving.http.faces import Face
from redraft_serving.http.generation import Generation
from redraft_serving.http.pieces import Pieces
from redraft_serving.http.sampling import requests_of
from redraft_serving.http.schemas import GenerationBody
from redraft_serving.http.streaming import ClientGone, EventStream, answer_or_gone, event, guarded
from redraft_serving.http.usage import metrics_of, usage_of

Prompt = tuple[int, ...]


async def answer(
    request: Request,
    context: Context,
    body: GenerationBody,
    admission: Admission,
    prompts: Sequence[Prompt],
    face: Face,
) -> Response:
    """Generate, and write the choices down in the form of `face`."""
    request_id = face.prefix + uuid.uuid4().hex
    prediction = await context.prompts.prediction(body.prediction)
    requests = requests_of(body, context, request_id, admission, prompts, prediction)
    left = admission.deadline - time.monotonic()
    generation = Generation(context.engine, requests, left, context.settings.request_seconds)
    generation.submit()

    def finish() -> None:
        settle(request, context, admission, generation, prompts)

    head = {"id": request_id, "created": int(time.time()), "model": context.model.name}
    if body.stream:
        events = _events(generation, context, face, {**head, "object": face.chunk_object}, body, prompts)
        return EventStream(guarded(events, admission.name), finish)
    try:
        await answer_or_gone(request, generation.collect())
    except ClientGone:
        return Response(status_code=499)
    finally:
        finish()
    return JSONResponse({**head, "object": face.object, **_whole(generation, context, face, prompts)})


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
    """One event per piece of a choice, then usage and metrics where they are asked for."""
    options = body.stream_options
    include_usage = bool(options and options.include_usage)
    continuous = bool(options and options.continuous_usage_stats)

    pieces = Pieces(context.settings.stream_interval)

    def chunk(choices: list[dict[str, Any]]) -> bytes:
        usage = usage_of(generation, prompts, pieces.held) if continuous else None
        return event(
            {**head, "choices": choices, **({"usage": usage} if include_usage or continuous else {})}
        )

    opened: set[int] = set()

    def written(index: int, emission: Emission | None) -> Iterator[bytes]:
        if index not in opened:
            opened.add(index)
            if face.opening is not None:
                yield chunk([{"index": index, **face.opening}])
        piece = None if emission is None else face.piece(index, emission)
        if piece is not None:
            yield chunk([piece])

    try:
        async for index, emission in generation:
            for one in written(index, pieces.add(index, emission)):
                yield one
    except ApiError:
        for index, emission in pieces.rest():
            for one in written(index, emission):
                yield one
        raise
    if include_usage:
        usage = usage_of(generation, prompts)
        yield event({**head, "choices": [], "usage": usage, "metrics": _metrics(generation, context)})
