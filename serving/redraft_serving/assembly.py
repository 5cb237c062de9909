"""A serving worker's parts, put together in order: connections, capture, engine, swaps, faces.

Each is stopped in reverse order by the caller's exit stack. Redis and MLflow may be away at the start and at
any later time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import redis
from fastapi import FastAPI
from redraft_models.loading import ModelPair
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_queue.celery_app import build_app as build_app_of_celery
from redraft_queue.celery_app import request_round
from redraft_queue.errors import StreamUnavailable
from redraft_queue.events import ChampionMoved, champion_events, publish_champion
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from redraft_queue.trials import TrialStore

from redraft_serving.actions import Actions
from redraft_serving.canary.trials import Trials
from redraft_serving.capture import Capture
from redraft_serving.engine.local import LocalEngine
from redraft_serving.engine.memory_sums import describe
from redraft_serving.http.app import build_app
from redraft_serving.http.domains import Domains
from redraft_serving.http.errors import BadRequest
from redraft_serving.http.metrics import LoopCounters
from redraft_serving.http.served import ServedModel, public_name
from redraft_serving.live import LiveAcceptance
from redraft_serving.loss import LossMeter
from redraft_serving.overview import Overview
from redraft_serving.settings import ServingSettings
from redraft_serving.signs import show_signs
from redraft_serving.swap import SwapWatcher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerConfig:
    """All that a serving worker needs to know. Without `tracking_uri` it stays on the base draft; without
    `redis_url` it keeps no samples.
    """

    models: ModelSettings
    serving: ServingSettings
    queue: QueueSettings
    cache_dir: Path
    redis_url: str | None = None
    tracking_uri: str | None = None
    artifact_root: Path | None = None
    default_domain: str = "default"
    domains: tuple[str, ...] = ()
    shared_drafts: Mapping[str, str] = field(default_factory=dict)
    """Domain -> the domain whose champion serves it."""
    url: str | None = None
    """Where this worker listens, as its sign of life says."""


def assemble(config: WorkerConfig, pair: ModelPair, cleanup: ExitStack) -> FastAPI:
    """Start engine, capture and swap, each stopped by `cleanup` in reverse order; returns the application."""
    return _Assembly(config, pair, cleanup).app()


def served_model(pair: ModelPair, settings: ServingSettings) -> ServedModel:
    """What clients may know of a pair."""
    return ServedModel(
        name=settings.served_model_name or public_name(pair.target.source),
        tokenizer=pair.tokenizer,
        vocab_size=pair.vocab_size,
        max_model_len=pair.max_model_len,
        target_fingerprint=pair.target.fingerprint,
        tokenizer_fingerprint=pair.tokenizer_fingerprint,
        base_draft_fingerprint=pair.draft.fingerprint if pair.draft is not None else None,
    )


class _Assembly:
    """The steps, and what they share."""

    def __init__(self, config: WorkerConfig, pair: ModelPair, cleanup: ExitStack) -> None:
        self.config, self.pair, self.cleanup = config, pair, cleanup
        self.client = connect(config.redis_url, config.queue) if config.redis_url else None
        self.stream = SampleStream(self.client, config.queue) if self.client is not None else None
        self.registry = None
        if config.tracking_uri is not None:
            self.registry = Registry(config.tracking_uri, artifact_root=config.artifact_root)
        self.domains = self._domains()
        self.trials = Trials(config.serving.canary, TrialStore(self.client) if self.client else None)
        serving = config.serving
        self.live = LiveAcceptance(serving.acceptance_short_tokens, serving.acceptance_long_tokens)

    def app(self) -> FastAPI:
        """All steps."""
        serving = self.config.serving
        capture = self._capture()
        engine = self._engine(capture)
        watcher = self._watch(engine)
        if self.client is not None:
            self._show(self.client, engine, watcher)
        counters = LoopCounters(
            dropped=lambda: capture.dropped,
            written=lambda: capture.written,
            lost=self._losses(),
            swaps=lambda: watcher.counts if watcher else {},
        )
        return build_app(
            engine,
            served_model(self.pair, serving),
            serving,
            self.domains,
            counters,
            self._overview(engine),
            self.trials,
            self._actions(),
        )

    def _domains(self) -> Domains:
        """Those of the settings, and those that ever had a sample: their drafts load at the start."""
        config = self.config
        serving = config.serving
        own = (*serving.domain_speculative_tokens, *serving.bound_domains)
        named = (*config.domains, *own, *config.shared_drafts)
        domains = Domains(config.default_domain, named, config.serving.max_domains)
        try:
            for name in self.stream.domains() if self.stream is not None else ():
                domains.resolve(name)
        except StreamUnavailable as error:
            logger.warning("the domains of earlier samples are not known: %s", error)
        except BadRequest:
            logger.warning("more domains have samples than max_domains, %d", config.serving.max_domains)
        return domains

    def _capture(self) -> Capture:
        stream = self.stream
        capture = Capture(None if stream is None else lambda: stream, self.config.serving.capture_buffer)
        capture.start()
        self.cleanup.callback(capture.stop)
        return capture

    def _engine(self, capture: Capture) -> LocalEngine:
        serving = self.config.serving
        engine = LocalEngine(self.pair, serving, capture.offer)
        memory = describe(engine.statistics().memory)
        logger.info("%s on %s; %s", self.pair.dtype, self.pair.device, memory)
        for domain, setting in serving.domain_speculative_tokens.items():
            engine.configure(domain, setting)
        engine.start()
        self.cleanup.callback(engine.stop)
        return engine

    def _watch(self, engine: LocalEngine) -> SwapWatcher | None:
        """Follow the registry, if there is one and a draft to swap; waits for a first look."""
        pair, config = self.pair, self.config
        if self.registry is None or pair.draft is None:
            return None
        watcher = SwapWatcher(
            self.registry,
            engine,
            pair.draft.module,
            pair.draft.fingerprint,
            self.domains.names,
            config.serving.poll_seconds,
            config.cache_dir / "adapters",
            pair.vocab_size,
            trials=self.trials,
            announce=self._announce if self.client is not None else None,
            adopt_from=config.default_domain if config.serving.adopt_default else None,
            shared_drafts=config.shared_drafts,
        )
        self.cleanup.callback(watcher.stop)
        if not watcher.start(config.serving.registry_start_seconds):
            logger.warning("the registry has not answered yet; serving begins with the base draft")
        return watcher

    def _show(self, client: redis.Redis, engine: LocalEngine, watcher: SwapWatcher | None) -> None:
        """Signs of life to Redis, and news from there."""
        config = self.config
        names, url = self.domains.names, config.url
        show_signs(client, config.queue, engine, self.live, watcher, names, url, self.cleanup)
        if watcher is not None:
            self._listen(client, watcher)

    def _overview(self, engine: LocalEngine) -> Overview:
        """What the dashboard and /metrics tell of the loop, gathered off the request path."""
        overview = Overview(
            engine,
            self.registry,
            self.stream,
            self.client,
            self.domains.names,
            trials=self.trials,
            live=self.live,
            shared_drafts=self.config.shared_drafts,
            settings=self.config.queue,
        )
        overview.start()
        self.cleanup.callback(overview.stop)
        return overview

    def _actions(self) -> Actions:
        """What an operator may ask for over HTTP."""
        config = self.config
        if config.redis_url is None or self.client is None:
            return Actions(self.registry)
        app = build_app_of_celery(config.redis_url, config.queue)

        def train(domain: str) -> str:
            return request_round(app, config.shared_drafts.get(domain, domain), force=True)

        return Actions(
            self.registry, lambda domain, version: self._announce(ChampionMoved(domain, version)), train
        )

    def _announce(self, event: ChampionMoved) -> None:
        assert self.client is not None
        publish_champion(self.client, event)

    def _losses(self) -> Callable[[], Mapping[str, int]]:
        """Count what is trimmed unseen, where both the stream and its cursors can be read."""
        if self.registry is None or self.stream is None:
            return lambda: {}
        meter = LossMeter(self.registry, self.stream, self.domains.names)
        meter.start()
        self.cleanup.callback(meter.stop)
        return lambda: meter.lost

    def _listen(self, client: redis.Redis, watcher: SwapWatcher) -> None:
        """Wake the watcher when a champion has moved."""
        stop = threading.Event()

        def run_events() -> None:
            for _ in champion_events(client, stop):
                watcher.wake()

        threading.Thread(target=run_events, name="redraft-events", daemon=True).start()
        self.cleanup.callback(stop.set)
