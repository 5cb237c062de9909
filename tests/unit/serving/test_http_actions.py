"""The routes of promote, rollback and train: what they ask of Actions, and what its refusals become."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_queue.errors import StreamUnavailable
from redraft_serving.actions import Actions
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application

Serve = Callable[[FastAPI], str]


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def client(word_tokenizer: PreTrainedTokenizerFast, serve: Serve, asked: list[str]) -> Iterator[httpx.Client]:
    """A worker without a registry, whose queue takes rounds of any domain but "away"."""

    def request_round(domain: str) -> str:
        if domain == "away":
            raise StreamUnavailable("redis://10.0.0.7:6379 refused the connection")
        asked.append(domain)
        return f"round-{len(asked)}"

    app = application(ScriptedEngine(), word_tokenizer, admin_key="operator")
    app.state.context.actions = Actions(None, None, request_round)
    app.state.context.domains.resolve("away")
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        made.headers["Authorization"] = "Bearer operator"
        made.app = app  # type: ignore[attr-defined]
        yield made


def act(client: httpx.Client, what: str, body: Any, domain: str = "default") -> httpx.Response:
    return client.post(f"/v1/drafts/{domain}/{what}", json=body)


def test_train_answers_the_rounds_id(client: httpx.Client, asked: list[str]) -> None:
    answer = act(client, "train", {})
    assert (answer.status_code, answer.json()) == (200, {"domain": "default", "round_id": "round-1"})
    assert asked == ["default"]


def test_redis_away_is_503_and_names_no_address(client: httpx.Client) -> None:
    answer = act(client, "train", {}, "away")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "10.0.0.7" not in answer.text


def test_a_worker_without_registry_says_so(client: httpx.Client) -> None:
    for what, body in (("promote", {"version": 1}), ("rollback", {})):
        answer = act(client, what, body)
        assert (answer.status_code, "without a registry" in answer.text) == (503, True)
    client.app.state.context.actions = None  # type: ignore[attr-defined]
    assert act(client, "train", {}).status_code == 503


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("promote", {}),
        ("promote", {"version": 0}),
        ("promote", {"version": "1"}),
        ("promote", {"version": 2**40}),
        ("promote", {"version": 1, "to": 2}),
        ("rollback", {"to": -1}),
        ("rollback", {"reason": ""}),
        ("rollback", {"reason": "x" * 501}),
        ("train", {"force": True}),
        ("train", None),
        ("train", []),
    ],
)
def test_wrong_bodies_are_400(client: httpx.Client, asked: list[str], what: str, body: Any) -> None:
    assert act(client, what, body).status_code == 400
    assert not asked


def test_an_unknown_domain_is_404(client: httpx.Client, asked: list[str]) -> None:
    for what, body in (("promote", {"version": 1}), ("rollback", {}), ("train", {})):
        answer = act(client, what, body, "medicine")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "domain_not_found")
    assert not asked


def test_a_page_of_another_site_can_start_nothing(client: httpx.Client, asked: list[str]) -> None:
    """Browsers send forms and plain text anywhere, JSON only where the server allows it: here never."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = client.post("/v1/drafts/default/train", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 400
    assert client.post("/v1/drafts/default/train").status_code == 400
    preflight = client.options("/v1/drafts/default/train", headers={"Origin": "http://elsewhere"})
    assert "access-control-allow-origin" not in preflight.headers
    assert not asked
