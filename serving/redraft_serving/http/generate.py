"""POST /v1/chat/completions and POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from redraft_serving.http.admission import admit
from redraft_serving.http.answering import answer
from redraft_serving.http.context import ContextDep
from redraft_serving.http.faces import ChatFace, CompletionFace
from redraft_serving.http.schemas import ChatBody, CompletionBody

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatBody, request: Request, context: ContextDep) -> Response:
    """Answer a conversation under the model's chat template."""
    admission = admit(request, body, context)
    prompt = await context.prompts.chat(body)
    face = ChatFace(context.texts, logprobs=bool(body.logprobs), token_ids=bool(body.return_token_ids))
    return await answer(request, context, body, admission, [prompt], face)


@router.post("/v1/completions", response_model=None)
async def completions(body: CompletionBody, request: Request, context: ContextDep) -> Response:
    """Continue one prompt or several: choices come prompt after prompt, n of each."""
    admission = admit(request, body, context)
    prompts = await context.prompts.completion(body)
    logprobs = body.logprobs is not None
    face = CompletionFace(context.texts, logprobs=logprobs, token_ids=bool(body.return_token_ids))
    return await answer(request, context, body, admission, prompts, face)
