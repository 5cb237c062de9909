"""Keys: what each of them opens, what it may name, and what nobody gets to see."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from redraft_serving.http.errors import Unauthorized
from redraft_serving.http.keys import Keyring
from redraft_serving.settings import ServingSettings
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application

Serve = Callable[[FastAPI], str]
KEYS = {
    "shop": {"key": "shop-secret", "domains": ["support", "faq"]},
    "lab": {"key": "lab-secret", "store": False},
}
STEERING = ("speculation", "promote", "rollback", "train")


@pytest.fixture
def client(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    app = application(engine, word_tokenizer, api_key="all-secret", api_keys=KEYS, admin_key="admin-secret")
    app.state.context.domains.resolve("support")
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        yield made


def complete(client: httpx.Client, key: str, domain: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", **({"X-Redraft-Domain": domain} if domain else {})}
    return client.post("/v1/completions", json={"prompt": "a", **body}, headers=headers)


def domains(client: httpx.Client, key: str) -> list[str]:
    answer = client.get("/v1/drafts", headers={"Authorization": f"Bearer {key}"})
    return [card["domain"] for card in answer.json()["data"]]


def test_a_key_names_its_domains_and_no_others(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert [complete(client, "shop-secret", domain).status_code for domain in (None, "faq")] == [200, 200]
    assert [request.domain for request in engine.submitted] == ["support", "faq"]
    for domain in ("default", "law", "../x"):
        answer = complete(client, "shop-secret", domain)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, "forbidden")
        assert "support, faq" in error["message"]
    assert len(engine.submitted) == 2
    assert "law" not in domains(client, "admin-secret")


def test_a_key_for_all_domains_has_the_workers_default(client: httpx.Client, engine: ScriptedEngine) -> None:
    for key in ("all-secret", "lab-secret"):
        assert complete(client, key).status_code == 200
        assert complete(client, key, "support").status_code == 200
    assert [request.domain for request in engine.submitted] == ["default", "support"] * 2


def test_drafts_show_a_keys_own_domains(client: httpx.Client) -> None:
    assert domains(client, "shop-secret") == ["support"]
    assert (
        set(domains(client, "all-secret")) == set(domains(client, "admin-secret")) == {"default", "support"}
    )


def test_wrong_keys_get_401_and_say_how(client: httpx.Client) -> None:
    for header in ("", "Bearer wrong", "Bearer shop-secretx", "Bearer shop-secre", "shop-secret", "Basic x"):
        headers = {"Authorization": header} if header else {}
        answer = client.get("/v1/models", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/v1/models", headers={"Authorization": "bearer shop-secret"}).status_code == 200


def test_steering_needs_the_admin_key(client: httpx.Client, engine: ScriptedEngine) -> None:
    for action in STEERING:
        path = f"/v1/drafts/default/{action}"
        assert client.post(path, json={}).status_code == 401
        for key in ("shop-secret", "all-secret", "lab-secret"):
            answer = client.post(path, json={}, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 403
            assert "admin key" in answer.json()["error"]["message"]
    admin = {"Authorization": "Bearer admin-secret"}
    body = {"num_speculative_tokens": 2}
    assert client.post("/v1/drafts/default/speculation", json=body, headers=admin).status_code == 200


def test_the_admin_key_reads_but_generates_nothing(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/v1/models", headers={"Authorization": "Bearer admin-secret"}).status_code == 200
    assert complete(client, "admin-secret").status_code == 403
    assert engine.submitted == []


def test_without_an_admin_key_steering_is_closed_where_keys_are(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    with httpx.Client(base_url=serve(application(engine, word_tokenizer, api_key="one"))) as client:
        headers = {"Authorization": "Bearer one"}
        answer = client.post("/v1/drafts/default/promote", json={"version": 1}, headers=headers)
        assert (answer.status_code, "serving.admin_key" in answer.text) == (403, True)


def test_an_admin_key_alone_leaves_the_rest_open(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    with httpx.Client(base_url=serve(application(engine, word_tokenizer, admin_key="one"))) as client:
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert complete(client, "none").status_code == 200
        assert client.post("/v1/drafts/default/train", json={}).status_code == 401
        headers = {"Authorization": "Bearer one"}
        assert client.post("/v1/drafts/default/train", json={}, headers=headers).status_code == 503


def test_without_keys_everything_is_open(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    with httpx.Client(base_url=serve(application(engine, word_tokenizer))) as client:
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        body = {"num_speculative_tokens": 2}
        assert client.post("/v1/drafts/default/speculation", json=body).status_code == 200


def test_every_route_that_could_do_something_is_guarded(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    """Whatever is added later: beside probes and pages, nothing answers without a key."""
    app = application(engine, word_tokenizer, api_keys=KEYS, admin_key="admin-secret")
    open_paths = {"/health", "/ready", "/ping", "/version", "/load"}
    with httpx.Client(base_url=serve(app)) as client:
        seen = set()
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            if path in open_paths:
                continue
            filled = path.replace("{domain}", "default").replace("{name}", "toy")
            for method in methods:
                assert client.request(method, filled, json={}).status_code == 401, (method, path)
                seen.add(path)
        assert seen >= {"/v1/completions", "/v1/drafts", "/tokenize", "/v1/drafts/{domain}/promote"}


def test_all_keys_are_compared_as_digests_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a guess differs, nor its length, nor which key it is, changes what is compared."""
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keyring = Keyring(ServingSettings(api_key="all-secret", api_keys=KEYS, admin_key="admin-secret"))
    for guess in ("Bearer all-secret", "Bearer lab-secret", "Bearer x", "Bearer " + "x" * 5000, ""):
        compared.clear()
        with suppress(Unauthorized):
            keyring.admit("GET", "/v1/models", guess)
        assert compared == [(32, 32)] * 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_key": ""}, "empty"),
        ({"api_key": "two words"}, "without spaces"),
        ({"admin_key": "ü"}, "visible ASCII"),
        ({"api_keys": {"a": {"key": "k", "domains": "support"}}}, "list of at least one domain"),
        ({"api_keys": {"a": {"key": "k", "domains": []}}}, "list of at least one domain"),
        ({"api_keys": {"a": {"key": "k", "domains": ["a b"]}}}, "is no name"),
        ({"api_keys": {"a b": {"key": "k"}}}, "is no name"),
        ({"api_keys": {"a": {"key": "k"}, "b": {"key": "k"}}}, "the same"),
        ({"api_key": "k", "admin_key": "k"}, "differ"),
        ({"admin_key": "k", "api_keys": {"a": {"key": "k"}}}, "differ"),
    ],
)
def test_settings_that_would_open_too_much_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ServingSettings(**settings)
    assert words in refused.value.errors()[0]["msg"]


def test_no_key_is_shown_or_logged(
    client: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServingSettings(api_key="all-secret", api_keys=KEYS, admin_key="admin-secret")
    assert "secret'" not in f"{settings!r} {settings} {settings.model_dump_json()}"
    assert settings.bound_domains == ("support", "faq")
    with caplog.at_level(logging.DEBUG):
        engine.fault = RuntimeError("a fault")
        answers = [complete(client, key) for key in ("shop-secret", "admin-secret", "wrong-secret")]
    assert [answer.status_code for answer in answers] == [500, 403, 401]
    logged = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("redraft"))
    assert logged
    assert not [key for key in ("shop-secret", "admin-secret", "wrong-secret") if key in logged]
    assert not [answer for answer in answers if "-secret" in answer.text]
