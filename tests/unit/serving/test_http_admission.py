"""What is settled before a request runs: whether it is kept, whose it is, and which arm serves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_queue.records import user_hash
from redraft_serving.engine.interface import (
    CHALLENGER,
    CHAMPION,
    Arm,
    DraftStatistics,
    EngineStatistics,
    RequestStatistics,
)
from transformers import PreTrainedTokenizerFast

from .scripted import ENDED, TWO_WORDS, ScriptedEngine, application

Serve = Callable[[FastAPI], str]
KEYS = {"lab": {"key": "lab-secret", "store": False}, "shop": {"key": "shop-secret"}}


class Ledger:
    """Stands where trials do: requests named "c..." are the challenger's; keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Arm, list[RequestStatistics]]] = []

    def arm_of(self, domain: str, request_id: str) -> Arm:
        return CHALLENGER if domain == "default" and request_id.startswith("c") else CHAMPION

    def finished(self, domain: str, arm: Arm, statistics: Sequence[RequestStatistics]) -> None:
        self.told.append((domain, arm, list(statistics)))

    def card(self, domain: str) -> dict[str, Any] | None:
        return {"id": "canary-5"} if domain == "default" else None


class TwoArms(ScriptedEngine):
    """Reports a champion and a challenger of the default domain."""

    def statistics(self) -> EngineStatistics:
        found = super().statistics()
        (champion,) = found.drafts
        drafts: tuple[DraftStatistics, ...] = (champion, replace(champion, version=5, arm=CHALLENGER))
        return replace(found, drafts=drafts)


@pytest.fixture
def engine() -> ScriptedEngine:
    return TwoArms(TWO_WORDS)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def client(
    engine: ScriptedEngine, ledger: Ledger, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    app = application(engine, word_tokenizer, api_keys=KEYS, no_store_domains=["private"])
    app.state.context.trials = ledger
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        made.headers["Authorization"] = "Bearer shop-secret"
        yield made


def complete(client: httpx.Client, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "a", **body}, headers=headers)


@pytest.mark.parametrize(
    ("headers", "body", "kept"),
    [
        ({}, {}, True),
        ({}, {"store": True}, True),
        ({}, {"store": False}, False),
        ({"Authorization": "Bearer lab-secret"}, {}, False),
        ({"Authorization": "Bearer lab-secret"}, {"store": True}, False),
        ({"X-Redraft-Domain": "private"}, {"store": True}, False),
    ],
)
def test_what_is_kept(
    client: httpx.Client, engine: ScriptedEngine, headers: dict[str, str], body: dict[str, Any], kept: bool
) -> None:
    """Each of request, key and domain can say no, and none can overrule another's no."""
    assert complete(client, headers, **body).status_code == 200
    assert [request.capture for request in engine.submitted] == [kept]


def test_only_a_hash_of_the_user_goes_on(client: httpx.Client, engine: ScriptedEngine) -> None:
    complete(client, user="alice@example.org", n=2)
    complete(client, user="")
    complete(client)
    users = [request.user for request in engine.submitted]
    assert users == [user_hash("alice@example.org")] * 2 + [None, None]
    assert "alice" not in str(users)
    assert complete(client, user=5).json()["error"]["param"] == "user"
    assert complete(client, user="x" * 513).json()["error"]["param"] == "user"


def test_a_request_keeps_the_arm_that_its_id_gives_it(
    client: httpx.Client, engine: ScriptedEngine, ledger: Ledger
) -> None:
    for name in ("c-1", "a-1", "c-1"):
        complete(client, {"X-Request-Id": name}, n=2)
    arms = [request.arm for request in engine.submitted]
    assert arms == [CHALLENGER] * 2 + [CHAMPION] * 2 + [CHALLENGER] * 2
    assert [arm for _, arm, _ in ledger.told] == [CHALLENGER, CHAMPION, CHALLENGER]


@pytest.mark.parametrize("stream", [True, False])
def test_a_trial_hears_of_each_request_once(client: httpx.Client, ledger: Ledger, stream: bool) -> None:
    """All choices of a request together: they are one cluster."""
    assert complete(client, {"X-Request-Id": "c-2"}, n=2, stream=stream).status_code == 200
    deadline = time.monotonic() + 5  # a stream's client has its last byte a moment before
    while not ledger.told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ledger.told == [("default", CHALLENGER, [ENDED, ENDED])]


def test_a_trial_hears_nothing_of_a_failed_request(
    client: httpx.Client, engine: ScriptedEngine, ledger: Ledger
) -> None:
    engine.script = (TWO_WORDS[0], replace(TWO_WORDS[1], finish_reason="error"))
    assert complete(client).status_code == 500
    engine.places = 0
    assert complete(client).status_code == 429
    assert ledger.told == []


def test_cards_are_of_champions_and_tell_the_trial(client: httpx.Client) -> None:
    complete(client, {"X-Redraft-Domain": "law"})
    cards = client.get("/v1/drafts").json()["data"]
    told = [(card["domain"], card["version"], card["trial"]) for card in cards]
    assert told == [("default", "base", {"id": "canary-5"}), ("law", "base", None)]
