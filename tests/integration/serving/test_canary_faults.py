"""A worker, Redis or the registry goes in a canary: nothing is decided, all is served, and it ends later."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_models.errors import RegistryUnavailable
from redraft_models.registry import Registry
from redraft_queue.stream import connect

from .canary_members import QUEUE, QUICK, RUIN, Member, arms, tag, until, wait_for

pytestmark = pytest.mark.integration


class OneBroken(Registry):
    """MLflow answers 500 for the files of one domain."""

    def download(self, domain: str, *rest: Any, **more: Any) -> Path:
        if domain == "broken":
            raise RegistryUnavailable("MLflow could not download it: 500 Server Error")
        return super().download(domain, *rest, **more)


def test_a_domain_whose_files_cannot_be_had_does_not_keep_others_from_theirs(
    member: Callable[..., Member], version: Callable[..., int], tracking_uri: str
) -> None:
    registry = OneBroken(tracking_uri)
    for domain in ("broken", "law"):
        registry.promote(domain, version(0.0, domain=domain))
    worker = member(registry=registry, domains=("broken", "law"))
    wait_for(lambda: worker.version("law") == 1, 15)
    assert worker.version("broken") == "base"


def test_a_worker_that_dies_in_a_canary_leaves_its_evidence(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """Its successor takes the canary up again; slow settings keep it open meanwhile."""
    open_long = QUICK.model_copy(update={"min_requests": 10_000})
    first = version(0.0)
    registry.promote("default", first)
    worker = member(settings=open_long)
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.watcher.challengers != {})
    for _ in range(10):
        worker.ask()
    seen = int(worker.trials.card("default")["arms"]["challenger"]["requests"])  # type: ignore[index]
    worker.watcher.stop()
    worker.engine.stop()
    successor = member(settings=open_long)
    wait_for(lambda: successor.watcher.challengers == {"default": second})

    def found() -> int:
        card = successor.trials.card("default")
        return 0 if card is None else int(card["arms"]["challenger"]["requests"])

    assert seen > 0
    wait_for(lambda: found() >= seen)
    successor.ask(requests=8)
    wait_for(lambda: found() > seen)


def test_redis_away_decides_nothing_and_serves_on(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry, redis_url: str
) -> None:
    first = version(0.0)
    registry.promote("default", first)
    worker = member()
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.watcher.challengers != {})
    paused = time.monotonic()
    connect(redis_url, QUEUE).execute_command("CLIENT", "PAUSE", 8000, "ALL")
    while time.monotonic() < paused + 6:
        worker.ask()
    assert worker.failed == []
    assert tag(registry, second, "canary") == "running"
    assert arms(worker) == {"champion", "challenger"}
    until(lambda: tag(registry, second, "canary") == "failed", [worker])


def test_the_registry_away_decides_nothing_and_serves_on(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry, tracking_uri: str
) -> None:
    """Somebody holds MLflow's database; the worker's reads give up after half a second."""
    first = version(0.0)
    registry.promote("default", first)
    worker = member(registry=Registry(tracking_uri, timeout_seconds=0.5))
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.watcher.challengers != {})
    database = sqlite3.connect(tracking_uri.removeprefix("sqlite:///"), timeout=10)
    database.execute("BEGIN EXCLUSIVE")
    held = time.monotonic()
    while time.monotonic() < held + 4:
        worker.ask()
    assert worker.failed == []
    assert arms(worker) == {"champion", "challenger"}
    database.rollback()
    database.close()
    until(lambda: tag(registry, second, "canary") == "failed", [worker])
    assert worker.version() == first
