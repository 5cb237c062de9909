"""The request log: nothing by default, one line per request where it is asked for, and texts apart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from transformers import PreTrainedTokenizerFast

from .scripted import TWO_WORDS, ScriptedEngine, application

Serve = Callable[[FastAPI], str]
SECRETS = ("shop-secret", "wrong-secret")


def run(
    tokenizer: PreTrainedTokenizerFast, serve: Serve, caplog: pytest.LogCaptureFixture, **settings: Any
) -> list[str]:
    """Log messages of a completion, a stream, a chat, a wrong key, a bad request, a fault and probes."""
    keys = {"shop": {"key": "shop-secret", "domains": ["support"]}}
    engine = ScriptedEngine(TWO_WORDS)
    app = application(engine, tokenizer, api_keys=keys, **settings)
    good = {"Authorization": "Bearer shop-secret", "X-Request-Id": "mine"}
    with caplog.at_level(logging.DEBUG), httpx.Client(base_url=serve(app), timeout=10) as client:

        def ask(path: str = "/v1/completions", headers: dict[str, str] = good, **body: Any) -> None:
            client.post(path, json={"prompt": "d e f", **body}, headers=headers)

        ask()
        ask(stream=True)
        ask("/v1/chat/completions", messages=[{"role": "user", "content": "d e f"}])
        ask(headers={"Authorization": "Bearer wrong-secret"})
        ask(n=0)
        engine.fault = ZeroDivisionError("a fault")
        ask()
        client.get("/health")
        client.get("/metrics")
        deadline = time.monotonic() + 5
        while settings.get("log_requests") and len(lines(caplog)) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
    everything = " ".join(record.getMessage() for record in caplog.records if record.name != "httpx")
    assert not [secret for secret in SECRETS if secret in everything]
    return lines(caplog)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    name = "redraft_serving.http.request_log"
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_nothing_is_logged_unless_asked(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(word_tokenizer, serve, caplog, log_prompts=True) == []
    assert not [record for record in caplog.records if "d e f" in record.getMessage()]


def test_one_line_per_request_without_a_word_of_it(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    found = run(word_tokenizer, serve, caplog, log_requests=True)
    assert [line.split()[:3] for line in found] == [
        ["POST", "/v1/completions", "200"],
        ["POST", "/v1/completions", "200"],
        ["POST", "/v1/chat/completions", "200"],
        ["POST", "/v1/completions", "401"],
        ["POST", "/v1/completions", "400"],
        ["POST", "/v1/completions", "500"],
    ]
    for line in found[:3]:
        for part in ("id=mine", "key=shop", "domain=support", "prompt_tokens=3", "completion_tokens=2"):
            assert part in line.split()
        assert "decode_ms=0.0" in line
    assert "key=none" in found[3].split()
    assert not [line for line in found if "d e f" in line or "b c" in line]


def test_prompts_only_where_they_are_asked_for_as_well(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    found = run(word_tokenizer, serve, caplog, log_requests=True, log_prompts=True)
    assert all('prompts=["d e f"]' in line for line in found[:3])


def test_a_client_can_write_no_line_of_its_own(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = application(ScriptedEngine(TWO_WORDS), word_tokenizer, log_requests=True, log_prompts=True)
    with caplog.at_level(logging.INFO), httpx.Client(base_url=serve(app), timeout=10) as client:
        client.get("/v1/models/x%0AINFO forged%1b[31m")
        client.post("/v1/completions", json={"prompt": "a\nINFO forged"}, headers={"X-Request-Id": "x y"})
    assert len(lines(caplog)) == 2
    assert not [line for line in lines(caplog) if "\n" in line or "\x1b" in line]
