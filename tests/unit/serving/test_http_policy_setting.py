"""What a domain's card tells of the policy, and the call that changes how far the domain speculates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.policy.types import Setting
from transformers import PreTrainedTokenizerFast

from .reporting import FRESH, REPORT, ReportingEngine, card, law_client
from .scripted import application

Serve = Callable[[FastAPI], str]


@pytest.fixture
def engine() -> ReportingEngine:
    return ReportingEngine()


@pytest.fixture
def client(
    engine: ReportingEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    with law_client(engine, word_tokenizer, serve) as made:
        yield made


def test_the_card_says_what_was_chosen_and_why(client: httpx.Client) -> None:
    assert card(client)["policy"] == {
        "setting": "auto",
        "state": "speculating",
        "reason": REPORT.reason,
        "num_speculative_tokens": 3,
        "proposer": "draft",
        "acceptance_by_position": {"draft": [0.8, 0.7, 0.5], "ngram": [0.25]},
        "draft_step_ms": 4.0,
        "verify_ms": 32.0,
        "plain_ms": 29.0,
        "rest_ms": 1.0,
        "break_even_acceptance": 0.31,
        "modelled_gain": 1.62,
        "measured_gain": 1.58,
        "switches": 2,
        "probes": 7,
        "baselines": 11,
    }
    assert card(client, "default")["policy"] is None


def test_a_policy_without_data_is_null_not_zero(client: httpx.Client, engine: ReportingEngine) -> None:
    engine.report = FRESH
    policy = card(client)["policy"]
    empty = {name for name, value in policy.items() if value is None}
    assert empty >= {"draft_step_ms", "verify_ms", "break_even_acceptance", "modelled_gain", "measured_gain"}
    assert policy["acceptance_by_position"] == {}


def change(client: httpx.Client, domain: str, body: Any) -> httpx.Response:
    return client.post(f"/v1/drafts/{domain}/speculation", json=body)


@pytest.mark.parametrize("setting", ["auto", 0, 3, 8, None])
def test_a_setting_changes_while_serving(
    client: httpx.Client, engine: ReportingEngine, setting: Setting | None
) -> None:
    answer = change(client, "law", {"num_speculative_tokens": setting})
    assert answer.status_code == 200
    assert engine.settings == {"law": setting}
    assert answer.json() == card(client)
    assert answer.json()["policy"]["setting"] == ("auto" if setting is None else setting)
    assert change(client, "default", {"num_speculative_tokens": setting}).json()["domain"] == "default"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "required"),
        ({"num_speculative_tokens": "many"}, "'many'"),
        ({"num_speculative_tokens": "3"}, "'3'"),
        ({"num_speculative_tokens": -1}, "-1"),
        ({"num_speculative_tokens": 2.5}, "2.5"),
        ({"num_speculative_tokens": True}, "True"),
        ({"num_speculative_tokens": [3]}, "[3]"),
        ({"num_speculative_tokens": 9}, "at most 8"),
        ({"num_speculative_tokens": 3, "domain": "law"}, "not permitted"),
        ([], "JSON object"),
        (None, "JSON object"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(
    client: httpx.Client, engine: ReportingEngine, body: Any, words: str
) -> None:
    answer = change(client, "law", body)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert words in message
    assert message.count("\n") == 0
    assert engine.settings == {}


def test_an_unknown_domain_is_404_and_stays_unknown(client: httpx.Client, engine: ReportingEngine) -> None:
    for domain in ("medicine", "a b", "x" * 300):
        answer = change(client, domain, {"num_speculative_tokens": 0})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "domain_not_found", "domain")
        assert "default, law" in error["message"]
    assert engine.settings == {}
    assert len(client.get("/v1/drafts").json()["data"]) == 2


def test_a_dead_engine_is_503(client: httpx.Client, engine: ReportingEngine) -> None:
    engine.alive = False
    assert change(client, "law", {"num_speculative_tokens": 0}).status_code == 503


def test_the_key_guards_the_setting(
    engine: ReportingEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    """The clients' key is not enough: it needs the admin's."""
    app = application(engine, word_tokenizer, api_key="correct", admin_key="operator")
    with httpx.Client(base_url=serve(app)) as client:
        body = {"num_speculative_tokens": 0}
        for key, status in (("none", 401), ("correct", 403)):
            client.headers["Authorization"] = f"Bearer {key}"
            assert change(client, "default", body).status_code == status
        assert engine.settings == {}
        client.headers["Authorization"] = "Bearer operator"
        assert change(client, "default", body).status_code == 200
        assert client.get("/v1/drafts/default/speculation").status_code == 405
