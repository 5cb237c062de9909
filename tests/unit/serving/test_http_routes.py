"""Beside generation: keys, request ids, domains, metrics, drafts, tokens there and back."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import openai
import pytest
from fastapi import FastAPI
from redraft_serving.http.logprobs import TokenTexts
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application, complete

Serve = Callable[[FastAPI], str]
METRICS = (
    *(f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")),
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    *(
        f"redraft_{name}_total"
        for name in ("tested_tokens", "emitted_tokens", "samples_dropped", "samples_lost")
    ),
    *(f"redraft_{name}" for name in ("requests_running", "requests_waiting", "draft_version", "swaps_total")),
)
DRAFT_KEYS = {
    *(
        "domain",
        "version",
        "base_draft_fingerprint",
        "target_fingerprint",
        "tokenizer_fingerprint",
        "adapter",
    ),
    *("rounds", "proposed", "tested", "accepted", "emitted", "acceptance_rate"),
    *("num_speculative_tokens", "state"),
}


def test_api_key(engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    address = serve(application(engine, word_tokenizer, api_key="correct"))
    with httpx.Client(base_url=address) as client:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ü"}):
            encoded = {key: value.encode() for key, value in header.items()}
            assert client.get("/v1/models", headers=encoded).status_code == 401
        assert {client.get(path).status_code for path in ("/health", "/ready", "/metrics", "/ping")} == {200}
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 401
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()
    assert openai.OpenAI(base_url=f"{address}/v1", api_key="correct").models.list().data[0].id == "toy"


def test_request_ids(client: httpx.Client) -> None:
    assert client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = client.get("/health", headers={"X-Request-Id": "no spaces please"}).headers["x-request-id"]
    assert len(made) == 32
    assert complete(client, n=0).headers["x-request-id"]


def test_domains(client: httpx.Client) -> None:
    def ask(domain: str) -> int:
        headers = {"X-Redraft-Domain": domain}
        return client.post("/v1/completions", json={"prompt": "a"}, headers=headers).status_code

    assert [ask(name) for name in ("", "law", "Med.x_1-", "law")] == [200] * 4
    assert [ask(name) for name in ("a b", "../x", "-x", "x" * 65, "a:b")] == [400] * 5
    assert ask("fourth") == 400


def test_fresh_worker_has_numbers_but_no_rates(client: httpx.Client) -> None:
    """No division by zero, no NaN."""
    metrics = client.get("/metrics").text
    assert [name for name in METRICS if f"# TYPE {name} " not in metrics] == []
    assert "nan" not in metrics.lower()
    (draft,) = client.get("/v1/drafts").json()["data"]
    assert set(draft) >= DRAFT_KEYS
    assert (draft["version"], draft["acceptance_rate"], draft["adapter"]) == ("base", None, None)
    assert client.get("/load").json() == {"server_load": 0}
    assert client.get("/version").json()["version"]


def test_tokens_there_and_back(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"prompt": "a b c", "return_token_strs": True}).json()
    assert (found["count"], found["token_strs"], found["max_model_len"]) == (3, ["a", "b", "c"], 64)
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "a b c"}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert client.post("/tokenize", json={"messages": messages}).json()["count"] == 2
    assert client.post("/tokenize", json={}).status_code == 400
    assert client.post("/detokenize", json={"tokens": [99]}).status_code == 400


def test_bytes_of_split_characters(byte_tokenizer: PreTrainedTokenizerFast) -> None:
    """Joined bytes give the text back, though no single token of the character has a text."""
    texts = TokenTexts(byte_tokenizer)
    ids = byte_tokenizer("é🙃 ok", add_special_tokens=False)["input_ids"]
    assert bytes(byte for one in ids for byte in texts.bytes(one)).decode() == "é🙃 ok"
    assert any("\ufffd" in texts.text(one) for one in ids)
