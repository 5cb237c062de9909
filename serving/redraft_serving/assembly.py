"""A serving worker's parts, put together in order: connections, capture, engine, swaps, faces.

Each is stopped in reverse order by the caller's exit stack. Redis and MLflow may be away at the start and at
any later time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import redis
from fastapi import FastAPI
from redraft_models.loading import ModelPair
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_queue.events import champion_events
from redraft_queue.heartbeat import Details, Heartbeat
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect

from redraft_serving.capture import Capture
from redraft_serving.engine.local import LocalEngine
from redraft_serving.engine.memory_sums import describe
from redraft_serving.http.app import build_app
from redraft_serving.http.domains import Domains
from redraft_serving.http.metrics import LoopCounters
from redraft_serving.http.served import ServedModel
from redraft_serving.loss import LossMeter
from redraft_serving.overview import Overview
from redraft_serving.settings import ServingSettings
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


def assemble(config: WorkerConfig, pair: ModelPair, cleanup: ExitStack) -> FastAPI:
    """Start engine, capture and swap, each stopped by `cleanup` in reverse order; returns the application."""
    return _Assembly(config, pair, cleanup).app()


def served_model(pair: ModelPair, settings: ServingSettings) -> ServedModel:
    """What clients may know of a pair."""
    return ServedModel(
        name=settings.served_model_name or pair.target.source,
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
        serving = config.serving
        own = serving.domain_speculative_tokens
        self.domains = Domains(config.default_domain, (*config.domains, *own), serving.max_domains)
        self.client = connect(config.redis_url, config.queue) if config.redis_url else None
        self.stream = SampleStream(self.client, config.queue) if self.client is not None else None
        self.registry = None
        if config.tracking_uri is not None:
            self.registry = Registry(config.tracking_uri, artifact_root=config.artifact_root)

    def app(self) -> FastAPI:
        """All steps."""
        serving = self.config.serving
        capture = self._capture()
        engine = self._engine(capture)
        watcher = self._watch(engine)
        if self.client is not None:
            self._beat(self.client, watcher)
        counters = LoopCounters(
            dropped=lambda: capture.dropped,
            written=lambda: capture.written,
            lost=self._losses(),
            swaps=lambda: watcher.counts if watcher else {},
        )
        if self.client is not None and watcher is not None:
            self._listen(self.client, watcher)
        model, overview = served_model(self.pair, serving), self._overview(engine)
        return build_app(engine, model, serving, self.domains, counters, overview)

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
        """Follow the champions, if there is a registry and a draft to swap; waits for a first look."""
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
        )
        self.cleanup.callback(watcher.stop)
        if not watcher.start(config.serving.registry_start_seconds):
            logger.warning("the registry has not answered yet; serving begins with the base draft")
        return watcher

    def _beat(self, client: redis.Redis, watcher: SwapWatcher | None) -> None:
        """Show a sign of life with what is served."""

        def details() -> Details:
            return {"drafts": dict(watcher.serving) if watcher else {}, "domains": self.domains.names()}

        seconds = self.config.queue.heartbeat_ttl_seconds
        self.cleanup.enter_context(Heartbeat(client, "serving", seconds, details))

    def _overview(self, engine: LocalEngine) -> Overview:
        """What the dashboard and /metrics tell of the loop, gathered off the request path."""
        overview = Overview(
            engine,
            self.registry,
            self.stream,
            self.client,
            self.domains.names,
            settings=self.config.queue,
        )
        overview.start()
        self.cleanup.callback(overview.stop)
        return overview

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
