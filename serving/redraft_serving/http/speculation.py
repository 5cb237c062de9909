"""POST /v1/drafts/{domain}/speculation: how far a domain speculates, changed while it serves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from redraft_serving.http.context import Context, ContextDep
from redraft_serving.http.drafts import champions, draft_card, known_drafts
from redraft_serving.http.errors import BadRequest, DomainNotFound, Unavailable
from redraft_serving.http.schemas import SpeculationSetting
from redraft_serving.policy.types import Setting

router = APIRouter()


class SpeculationBody(BaseModel):
    """What a domain's rounds propose from now on."""

    model_config = ConfigDict(extra="forbid")

    num_speculative_tokens: SpeculationSetting
    """"auto", a number (0 is plain decoding), or null: back to the worker's own setting."""


@router.post("/v1/drafts/{domain}/speculation")
def set_speculation(domain: str, body: SpeculationBody, context: ContextDep) -> dict[str, Any]:
    """Change a domain's setting from the next round on; answers its card of GET /v1/drafts.

    Requests that name a number of their own keep it. A restart forgets the change.
    """
    _check(domain, body.num_speculative_tokens, context)
    context.engine.configure(domain, body.num_speculative_tokens)
    drafts = champions(known_drafts(context.engine.statistics(), context.engine, context.domains))
    return next(
        draft_card(context.model, draft, context.trials) for draft in drafts if draft.domain == domain
    )


def _check(domain: str, setting: Setting | None, context: Context) -> None:
    """Raises DomainNotFound, BadRequest or Unavailable."""
    known = context.domains.names()
    if domain not in known:
        raise DomainNotFound(domain, known)
    most = context.engine.max_speculative_tokens
    if isinstance(setting, int) and setting > most:
        raise BadRequest(
            f"num_speculative_tokens is {setting}; this server proposes at most {most}.",
            "num_speculative_tokens",
        )
    if not context.engine.alive:
        raise Unavailable("The inference engine has stopped; the server has to be restarted.")
