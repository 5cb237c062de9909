"""What surrounds generation: models, drafts, probes, tokens."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.responses import Response

from redraft_serving.http.context import ContextDep
from redraft_serving.http.drafts import champions, draft_card, known_drafts, memory_card
from redraft_serving.http.errors import BadRequest
from redraft_serving.http.keys import CallerDep
from redraft_serving.http.schemas import DetokenizeBody, TokenizeBody
from redraft_serving.http.served import ServedModel

router = APIRouter()


@router.get("/v1/models")
def models(context: ContextDep) -> dict[str, Any]:
    """The one model that is served."""
    return {"object": "list", "data": [_model_card(context.model)]}


@router.get("/v1/models/{name:path}")
def model(name: str, context: ContextDep) -> dict[str, Any]:
    """One model by name."""
    context.model.check_name(name)
    return _model_card(context.model)


@router.get("/v1/drafts")
def drafts(context: ContextDep, caller: CallerDep) -> dict[str, Any]:
    """Per domain that the key may see: which draft serves, what the target made of its proposals, what the
    policy decided, and what trial of another draft goes on.
    """
    statistics = context.engine.statistics()
    cards = [
        draft_card(context.model, draft, context.trials)
        for draft in champions(known_drafts(statistics, context.engine, context.domains))
        if caller.sees(draft.domain)
    ]
    return {"object": "list", "data": cards, "memory": memory_card(statistics.memory)}


@router.get("/health")
def health(context: ContextDep) -> Response:
    """200 while the engine lives, else 503."""
    return Response(status_code=200 if context.engine.alive else 503)


@router.get("/ready")
def ready(context: ContextDep) -> JSONResponse:
    """200 while new requests are taken, else 503."""
    takes = context.engine.alive and not context.draining
    return JSONResponse({"ready": takes}, status_code=200 if takes else 503)


@router.api_route("/ping", methods=["GET", "POST"])
def ping(context: ContextDep) -> Response:
    """The same as /health."""
    return health(context)


@router.get("/version")
def server_version() -> dict[str, str]:
    """Version of redraft."""
    try:
        return {"version": version("redraft")}
    except PackageNotFoundError:
        return {"version": "unknown"}


@router.get("/load")
def load(context: ContextDep) -> dict[str, int]:
    """Choices that run or wait."""
    statistics = context.engine.statistics()
    return {"server_load": statistics.running + statistics.waiting}


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, context: ContextDep) -> dict[str, Any]:
    """Token ids of a text or a conversation."""
    context.model.check_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("Send either prompt or messages.", "prompt")
    if body.messages is not None:
        text = context.prompts.render(body.messages, body.add_generation_prompt)
        ids = await context.prompts.encode(text, False)
    else:
        ids = await context.prompts.encode(body.prompt or "", body.add_special_tokens)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": context.model.max_model_len, "tokens": ids}
    return {**answer, "token_strs": context.prompts.strings(ids) if body.return_token_strs else None}


@router.post("/detokenize")
def detokenize(body: DetokenizeBody, context: ContextDep) -> dict[str, str]:
    """Text of token ids."""
    context.model.check_name(body.model)
    return {"prompt": context.prompts.decode(body.tokens)}


def _model_card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "redraft",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "permission": [],
    }
