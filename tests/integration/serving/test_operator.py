"""A whole worker with keys, between real Redis and MLflow: what an operator and its clients may each do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_models.registry import Registry
from redraft_queue.records import user_hash

from .test_loop import register, samples, serving, wait_for

pytestmark = pytest.mark.integration

Start = Callable[..., Any]
KEYS = {"shop": {"key": "shop-secret", "domains": ["support"]}, "lab": {"key": "lab-secret", "store": False}}


@pytest.fixture
def worker(start: Start, redis_url: str, tracking_uri: str) -> Any:
    config = {"redis_url": redis_url, "tracking_uri": tracking_uri}
    made = start("random", config=config, api_keys=KEYS, admin_key="operator", no_store_domains=["private"])
    made.http.headers["Authorization"] = "Bearer operator"
    return made


def act(worker: Any, what: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = worker.http.post(f"/v1/drafts/support/{what}", json=body)
    return answer.status_code, answer.json()


def test_an_operator_moves_champions_and_asks_for_rounds(
    worker: Any, tracking_uri: str, tmp_path: Path
) -> None:
    """The domain is known from its key alone, before any request."""
    registry = Registry(tracking_uri)
    first, second = (register(registry, worker, tmp_path, seed, "support") for seed in (1, 2))
    assert act(worker, "promote", {"version": first}) == (
        200,
        {"domain": "support", "from": None, "to": first},
    )
    wait_for(lambda: serving(worker, "support")["version"] == first)
    assert act(worker, "promote", {"version": second})[1]["from"] == first
    wait_for(lambda: serving(worker, "support")["version"] == second)
    assert act(worker, "promote", {"version": 99})[0] == 404
    assert act(worker, "promote", {"version": second})[0] == 409
    assert act(worker, "rollback", {"reason": "answers got slower"})[1]["to"] == first
    wait_for(lambda: serving(worker, "support")["version"] == first)
    assert registry.version("support", second).tags["rollback_reason"] == "answers got slower"
    status, told = act(worker, "train", {})
    assert (status, told["domain"], bool(told["round_id"])) == (200, "support", True)


def test_what_clients_leave_behind(worker: Any, redis_url: str) -> None:
    """Of five requests one is kept, under the hash of its user, in the domain of its key."""

    def ask(key: str, domain: str | None = None, **body: Any) -> int:
        headers = {"Authorization": f"Bearer {key}", **({"X-Redraft-Domain": domain} if domain else {})}
        request = {"prompt": "w1 w2", "max_tokens": 8, **body}
        return int(worker.http.post("/v1/completions", json=request, headers=headers).status_code)

    assert ask("shop-secret", user="alice") == 200
    assert ask("shop-secret", store=False) == 200
    assert ask("lab-secret", "support") == 200
    assert ask("lab-secret", "private") == 200
    assert ask("shop-secret", "private") == 403
    assert ask("operator") == 403
    wait_for(lambda: len(samples(redis_url, "support")) == 1)
    (kept,) = samples(redis_url, "support")
    assert kept.user == user_hash("alice")
    assert b"alice" not in kept.pack()
    assert samples(redis_url, "private") == samples(redis_url) == []
