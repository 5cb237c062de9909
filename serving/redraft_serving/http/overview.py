"""GET /v1/overview: everything that the dashboard shows, for one domain in full."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, cast

from fastapi import APIRouter, Request

from redraft_serving.http.context import Context, ContextDep
from redraft_serving.http.drafts import champions, draft_card, known_drafts
from redraft_serving.http.errors import DomainNotFound
from redraft_serving.http.metrics import LoopCounters
from redraft_serving.overview import Overview

router = APIRouter()


@router.get("/v1/overview")
def overview(request: Request, context: ContextDep, domain: str | None = None) -> dict[str, Any]:
    """Drafts as in GET /v1/drafts, and beside them the loop: history, rounds, stream, trial and workers.

    `domain` is the one that is told in full, by default the first that the key may see. Nothing here waits
    for a server: what Redis and MLflow said last is told with its age.
    """
    allowed = allowed_domains(request, context)
    if domain is not None and domain not in allowed:
        raise DomainNotFound(domain, allowed)
    found = context.engine.statistics()
    known = champions(known_drafts(found, context.engine, context.domains))
    drafts = [draft for draft in known if draft.domain in set(allowed)]
    document = _overview(context).document(allowed, domain or next(iter(allowed), None))
    if getattr(request.state, "domains", None) is not None:
        document["workers"] = None  # a key that is bound to domains shows these, not the machines
    return {
        "object": "overview",
        "model": context.model.name,
        "may_act": may_act(request, context),
        "running": found.running,
        "waiting": found.waiting,
        "samples": _samples(request, set(allowed)),
        "drafts": [draft_card(context.model, draft, context.trials) for draft in drafts],
        **document,
    }


def allowed_domains(request: Request, context: Context) -> list[str]:
    """The domains of this worker that the caller's key may see: all of them where it is bound to none."""
    bound = getattr(request.state, "domains", None)
    return [name for name in context.domains.names() if bound is None or name in bound]


def may_act(request: Request, context: Context) -> bool:
    """Whether this caller may promote, roll back and train."""
    return context.actions is not None and bool(getattr(request.state, "admin", False))


def _overview(context: Context) -> Overview:
    return cast(Overview, context.overview)


def _samples(request: Request, allowed: Set[str]) -> dict[str, Any]:
    """What this worker's capture did since its start."""
    counters = cast(LoopCounters, request.app.state.loop_counters)
    lost = {domain: count for domain, count in counters.lost().items() if domain in allowed}
    return {"written": counters.written(), "dropped": dict(counters.dropped()), "lost": lost}
