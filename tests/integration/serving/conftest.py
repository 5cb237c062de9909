"""Whole serving workers on toy pairs, answering real HTTP from this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from redraft_models.loading import ModelPair, load_pair
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_models.toy import write_toy_pair
from redraft_queue.settings import QueueSettings
from redraft_serving.assembly import WorkerConfig, assemble
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings
from sqlalchemy import sql

from .canary_members import Member, make_member, register


@dataclass
class Worker:
    """One running worker."""

    url: str
    engine: LocalEngine
    http: httpx.Client
    app: FastAPI

    @property
    def api(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **body})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metric(self, name: str) -> float:
        """Sum of a family's samples on /metrics."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))
        )


Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """`pairs(kind, **options)`: folders of a toy pair, made once per module."""
    made: dict[str, tuple[Path, Path]] = {}

    def make(kind: str, **options: Any) -> tuple[Path, Path]:
        key = repr((kind, sorted(options.items())))
        if key not in made:
            made[key] = write_toy_pair(tmp_path_factory.mktemp(kind), kind, **options)  # type: ignore[arg-type]
        return made[key]

    return make


@pytest.fixture(scope="module")
def start(
    pairs: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """`start(kind, k=3, ...)`: a worker on a toy pair; all are stopped at the end of the module."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []
    with ExitStack() as cleanup:

        def make(
            kind: str,
            k: int = 3,
            *,
            pair: dict[str, Any] | None = None,
            config: dict[str, Any] | None = None,
            max_model_len: int = 2048,
            **serving: Any,
        ) -> Worker:
            target, draft = pairs(kind, **(pair or {}))
            settings = ServingSettings(
                served_model_name="toy", num_speculative_tokens=k, **{"poll_seconds": 0.2, **serving}
            )
            worker = WorkerConfig(
                models=ModelSettings(target=str(target), draft=str(draft), max_model_len=max_model_len),
                serving=settings,
                cache_dir=tmp_path_factory.mktemp("cache"),
                **{"queue": QueueSettings(socket_timeout_seconds=0.5), **(config or {})},
            )
            app = assemble(worker, load_pair(worker.models, worker.cache_dir), cleanup)
            url = _serve(app, servers)
            http = cleanup.enter_context(httpx.Client(base_url=url, timeout=60))
            return Worker(url, app.state.context.engine, http, app)

        yield make
        for server, _ in servers:
            server.should_exit = True
        for _, thread in servers:
            thread.join(timeout=10)


def _serve(app: FastAPI, servers: list[tuple[uvicorn.Server, threading.Thread]]) -> str:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    servers.append((server, thread))
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def pair(pairs: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """A random toy pair, loaded once per module for workers that share it."""
    target, draft = pairs("random")
    settings = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=256)
    return load_pair(settings, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def registry(tracking_uri: str) -> Registry:
    """The registry of an empty MLflow."""
    return Registry(tracking_uri)


@pytest.fixture
def hasty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow waits 20 s for a database that somebody holds; with this 0.1 s."""
    text_of = sql.text
    short = ("busy_timeout = 20000", "busy_timeout = 100")
    monkeypatch.setattr(sql, "text", lambda words: text_of(words.replace(*short)))


@pytest.fixture
def member(
    pair: ModelPair, registry: Registry, redis_url: str, tmp_path: Path
) -> Iterator[Callable[..., Member]]:
    """`member(settings=, domains=, ...)`: a serving worker without HTTP; all are stopped at the end."""
    with ExitStack() as cleanup:
        yield lambda **more: make_member(
            pair,
            more.pop("registry", registry),
            more.pop("redis_url", redis_url),
            tmp_path,
            cleanup,
            **more,
        )


@pytest.fixture
def version(pair: ModelPair, registry: Registry, tmp_path: Path) -> Callable[..., int]:
    """`version(spread, ...)`: register a version whose adapter is random, so far from the base draft."""
    return lambda spread, **more: register(registry, pair, tmp_path, spread, **more)
