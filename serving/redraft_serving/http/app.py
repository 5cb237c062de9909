"""Builds the application: routes, middleware, error forms, metrics. It knows no engine's making."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from redraft_serving.engine.interface import Engine
from redraft_serving.http import actions as action_routes
from redraft_serving.http import dashboard, generate, service, speculation
from redraft_serving.http import overview as overview_routes
from redraft_serving.http.context import Context
from redraft_serving.http.domains import Domains
from redraft_serving.http.errors import install_error_handlers
from redraft_serving.http.keys import KeyMiddleware, Keyring
from redraft_serving.http.latency import Latencies
from redraft_serving.http.limits import LimitMiddleware
from redraft_serving.http.logprobs import TokenTexts
from redraft_serving.http.metrics import EngineCollector, LoopCounters, install_metrics
from redraft_serving.http.middleware import RequestIdMiddleware
from redraft_serving.http.policies import Policies
from redraft_serving.http.prompts import PromptReader
from redraft_serving.http.request_log import RequestLogMiddleware
from redraft_serving.http.served import ServedModel
from redraft_serving.overview import Overview
from redraft_serving.settings import ServingSettings


def build_app(
    engine: Engine,
    model: ServedModel,
    settings: ServingSettings,
    domains: Domains,
    counters: LoopCounters | None = None,
    overview: Overview | None = None,
    trials: Any = None,
    actions: Any = None,
) -> FastAPI:
    """The application over a started engine. Its shared state is `app.state.context`.

    `trials` says which arm serves a request; `actions` is what an operator may ask for. None: neither.
    """
    registry = CollectorRegistry()
    prompts = PromptReader(model, settings.max_prompt_tokens)
    seen = overview or Overview(engine)
    app = FastAPI(title="redraft")
    app.state.context = Context(
        engine=engine,
        model=model,
        settings=settings,
        domains=domains,
        prompts=prompts,
        texts=TokenTexts(prompts.tokenizer),
        latencies=Latencies(registry, model.name, seen.times),
        policies=Policies(engine),
        overview=seen,
        trials=trials,
        actions=actions,
    )
    app.state.loop_counters = counters or LoopCounters()
    registry.register(EngineCollector(engine, model.name, domains, app.state.loop_counters, seen))
    app.include_router(generate.router)
    app.include_router(service.router)
    app.include_router(speculation.router)
    app.include_router(action_routes.router)
    app.include_router(overview_routes.router)
    app.include_router(dashboard.router)
    install_metrics(app, registry)
    install_error_handlers(app)
    app.add_middleware(KeyMiddleware, keyring=Keyring(settings))
    app.add_middleware(
        LimitMiddleware,
        max_head=settings.max_header_bytes,
        max_body=settings.max_body_bytes,
        body_seconds=settings.client_seconds,
    )
    if settings.log_requests:
        app.add_middleware(RequestLogMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app
