"""One serving worker: models, engine, capture, swap and HTTP, put together, and taken apart in order.

Redis and MLflow may be away at the start and at any later time: the worker serves the base draft, keeps what
it has, and catches up when they return.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import redis
import uvicorn
from fastapi import FastAPI
from redraft_models.apart import apart
from redraft_models.loading import ModelPair, load_pair
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_queue.events import champion_events
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect

from redraft_serving.capture import Capture
from redraft_serving.engine.interface import Engine
from redraft_serving.engine.local import LocalEngine
from redraft_serving.engine.memory_sums import describe
from redraft_serving.errors import CannotListen
from redraft_serving.http.app import build_app
from redraft_serving.http.domains import Domains
from redraft_serving.http.metrics import LoopCounters
from redraft_serving.http.served import ServedModel
from redraft_serving.loss import LossMeter
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


def run(config: WorkerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then finish running requests and write what is buffered.

    Raises CannotListen, and whatever the models' sources and checks raise.
    """
    listener = bind(config.serving.host, config.serving.port)
    with ExitStack() as cleanup:
        cleanup.callback(listener.close)
        pair = apart(lambda: load_pair(config.models, config.cache_dir))
        app = assemble(config, pair, cleanup)
        serve(app, listener, config.serving)


def assemble(config: WorkerConfig, pair: ModelPair, cleanup: ExitStack) -> FastAPI:
    """Start engine, capture and swap, each stopped by `cleanup` in reverse order; returns the application."""
    serving = config.serving
    own = serving.domain_speculative_tokens
    domains = Domains(config.default_domain, (*config.domains, *own), serving.max_domains)
    client = connect(config.redis_url, config.queue) if config.redis_url else None
    stream = SampleStream(client, config.queue) if client is not None else None
    registry = None
    if config.tracking_uri is not None:
        registry = Registry(config.tracking_uri, artifact_root=config.artifact_root)
    capture = Capture(None if stream is None else lambda: stream, serving.capture_buffer)
    capture.start()
    cleanup.callback(capture.stop)
    engine = LocalEngine(pair, serving, capture.offer)
    logger.info("%s on %s; %s", pair.dtype, pair.device, describe(engine.statistics().memory))
    for domain, setting in own.items():
        engine.configure(domain, setting)
    engine.start()
    cleanup.callback(engine.stop)
    watcher = _watch(config, pair, engine, registry, domains, cleanup)
    if client is not None:
        _beat(client, config.queue, watcher, domains, cleanup)
    counters = LoopCounters(
        dropped=lambda: capture.dropped,
        written=lambda: capture.written,
        lost=_losses(registry, stream, domains, cleanup),
        swaps=lambda: watcher.counts if watcher else {},
    )
    if client is not None and watcher is not None:
        _listen(client, watcher, cleanup)
    return build_app(engine, served_model(pair, serving), serving, domains, counters)


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


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, before any model is loaded. Raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            undo.pop_all()
    except OSError as error:
        raise CannotListen(
            f"can't listen on {host}:{port} ({error.strerror}); choose another host or port"
        ) from error
    return listener


def serve(app: FastAPI, listener: socket.socket, settings: ServingSettings) -> None:
    """Answer HTTP until a signal; then refuse new requests and give running ones `drain_seconds`."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
    )
    host, port = listener.getsockname()[:2]
    logger.info("serving %s on http://%s:%d", app.state.context.model.name, host, port)
    asyncio.run(_Server(config, app).serve(sockets=[listener]))
    logger.info("the HTTP server has stopped")


class _Server(uvicorn.Server):
    """uvicorn raises a signal again once it has shut down, which would end us before our clean-up."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, _: FrameType | None) -> None:
        """First signal: drain. A second SIGINT: leave running requests alone."""
        self._app.state.context.draining = True
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def _watch(
    config: WorkerConfig,
    pair: ModelPair,
    engine: Engine,
    registry: Registry | None,
    domains: Domains,
    cleanup: ExitStack,
) -> SwapWatcher | None:
    """Follow the champions, if there is a registry and a draft to swap; waits a little for the first look."""
    if registry is None or pair.draft is None:
        return None
    watcher = SwapWatcher(
        registry,
        engine,
        pair.draft.module,
        pair.draft.fingerprint,
        domains.names,
        config.serving.poll_seconds,
        config.cache_dir / "adapters",
        pair.vocab_size,
    )
    cleanup.callback(watcher.stop)
    if not watcher.start(config.serving.registry_start_seconds):
        logger.warning("the registry has not answered yet; serving begins with the base draft")
    return watcher


def _beat(
    client: redis.Redis,
    queue: QueueSettings,
    watcher: SwapWatcher | None,
    domains: Domains,
    cleanup: ExitStack,
) -> None:
    """Show a sign of life with what is served."""
    cleanup.enter_context(
        Heartbeat(
            client,
            "serving",
            queue.heartbeat_ttl_seconds,
            lambda: {"drafts": dict(watcher.serving) if watcher else {}, "domains": domains.names()},
        )
    )


def _losses(
    registry: Registry | None, stream: SampleStream | None, domains: Domains, cleanup: ExitStack
) -> Callable[[], Mapping[str, int]]:
    """Count what is trimmed unseen, where both the stream and its cursors can be read."""
    if registry is None or stream is None:
        return lambda: {}
    meter = LossMeter(registry, stream, domains.names)
    meter.start()
    cleanup.callback(meter.stop)
    return lambda: meter.lost


def _listen(client: redis.Redis, watcher: SwapWatcher, cleanup: ExitStack) -> None:
    """Wake the watcher when a champion has moved."""
    stop = threading.Event()

    def run_events() -> None:
        for _ in champion_events(client, stop):
            watcher.wake()

    threading.Thread(target=run_events, name="redraft-events", daemon=True).start()
    cleanup.callback(stop.set)
