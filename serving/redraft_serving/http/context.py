"""What the routes of one application share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from redraft_serving.engine.interface import Engine
from redraft_serving.http.domains import Domains
from redraft_serving.http.latency import Latencies
from redraft_serving.http.logprobs import TokenTexts
from redraft_serving.http.policies import Policies
from redraft_serving.http.prompts import PromptReader
from redraft_serving.http.served import ServedModel
from redraft_serving.settings import ServingSettings


@dataclass
class Context:
    """Shared by all routes of one application."""

    engine: Engine
    model: ServedModel
    settings: ServingSettings
    domains: Domains
    prompts: PromptReader
    texts: TokenTexts
    latencies: Latencies
    policies: Policies
    trials: Any = None
    """Which arm serves a request, and what came of it; None: every request is the champion's."""
    actions: Any = None
    """Promote, roll back, train: what an operator may ask for; None where there is no registry."""
    overview: Any = None
    """What the dashboard shows."""
    draining: bool = False
    """True once the worker is stopping: no new requests, /ready says 503."""


async def context_of(request: Request) -> Context:
    """The application's context."""
    return cast(Context, request.app.state.context)


ContextDep = Annotated[Context, Depends(context_of)]
