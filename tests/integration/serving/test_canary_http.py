"""A canary as clients and operators see it: two whole workers, HTTP, real Redis and MLflow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_models.registry import Registry
from redraft_queue.heartbeat import heartbeats
from redraft_queue.stream import connect

from .canary_members import QUEUE, QUICK, register, tag, wait_for

pytestmark = pytest.mark.integration
BODY = {"temperature": 1, "max_tokens": 16, "ignore_eos": True}


def served(worker: Any, name: str) -> Any:
    answer = worker.http.post(
        "/v1/completions", json={"prompt": "w1 w2 w3", **BODY}, headers={"X-Request-Id": name}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["metrics"]["speculative_decoding"]["draft_version"]


def cards(worker: Any) -> list[Any]:
    drafts = worker.http.get("/v1/drafts").json()["data"]
    return [draft["trial"] for draft in drafts if draft["trial"] is not None]


def test_two_workers_agree_on_arms_and_on_the_champion(
    start: Callable[..., Any], tracking_uri: str, redis_url: str, tmp_path: Path
) -> None:
    registry = Registry(tracking_uri)
    config = {"tracking_uri": tracking_uri, "redis_url": redis_url}
    workers = [start("random", config=config, canary=QUICK) for _ in range(2)]
    pair = workers[0].engine.pair
    first = register(registry, pair, tmp_path, 0.3)
    registry.promote("default", first)
    second = register(registry, pair, tmp_path, 0.0, parent=first)
    registry.settle("default", second, canary=True)
    client = connect(redis_url, QUEUE)

    def challengers() -> list[Any]:
        return [sign.details.get("challengers") for sign in heartbeats(client) if sign.role == "serving"]

    wait_for(lambda: all(card["kind"] == "canary" for w in workers for card in cards(w) or [{"kind": ""}]))
    wait_for(lambda: {"default": second} in challengers())
    names = [f"retried-{i}" for i in range(12)]
    found = [served(workers[0], name) for name in names]
    assert found == [served(workers[1], name) for name in names], "too few yet for a decision"
    assert set(found) == {first, second}
    for _ in range(400):
        if tag(registry, second, "canary") != "running":
            break
        for worker in workers:
            for _ in range(5):
                served(worker, uuid.uuid4().hex)
    assert tag(registry, second, "canary") == "passed", tag(registry, second, "decision_reason")
    wait_for(lambda: all(card["kind"] == "watch" for w in workers for card in cards(w) or [{"kind": ""}]))
    for worker in workers:
        card = cards(worker)[0]
        assert (card["version"], card["against"]) == (second, first)
        versions = {served(worker, uuid.uuid4().hex) for _ in range(30)}
        assert versions == {first, second}, "the version before goes on serving its share"
