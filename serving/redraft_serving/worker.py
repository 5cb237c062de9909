"""One serving worker as a process: a port, models, the parts around them, HTTP, and an orderly end.

Redis and MLflow may be away at the start and at any later time: the worker serves the base draft, keeps what
it has, and catches up when they return.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType

import uvicorn
from fastapi import FastAPI
from redraft_models.apart import apart
from redraft_models.loading import load_pair

from redraft_serving.assembly import WorkerConfig, assemble
from redraft_serving.errors import CannotListen
from redraft_serving.http.connections import openness, uvicorn_options
from redraft_serving.settings import ServingSettings

__all__ = ["WorkerConfig", "run"]

logger = logging.getLogger(__name__)


def run(config: WorkerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then finish running requests and write what is buffered.

    Raises CannotListen, and whatever the models' sources and checks raise.
    """
    listener = bind(config.serving.host, config.serving.port)
    with ExitStack() as cleanup:
        cleanup.callback(listener.close)
        pair = apart(lambda: load_pair(config.models, config.cache_dir))
        host, port = listener.getsockname()[:2]
        app = assemble(replace(config, url=f"http://{host}:{port}"), pair, cleanup)
        _spare_pauses()
        serve(app, listener, config.serving)


def _spare_pauses() -> None:
    """Take what is there for good out of the garbage collector's rounds: a full one over all imported modules
    stops every stream, 0.4 s on the machine of docs/benchmarks.md.
    """
    gc.collect()
    gc.freeze()


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
        **uvicorn_options(settings),
    )
    host, port = listener.getsockname()[:2]
    logger.info("serving %s on http://%s:%d", app.state.context.model.name, host, port)
    if (told := openness(settings, host)) is not None:
        logger.warning(told)
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
