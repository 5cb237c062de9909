"""What one request may ask for: each limit has a setting, an answer of its own, and room up to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from redraft_serving.engine.interface import EmissionSink, GenerationRequest
from transformers import PreTrainedTokenizerFast

from .scripted import TWO_WORDS, ScriptedEngine, application

Serve = Callable[[FastAPI], str]
PLENTY = {"max_n": 16, "max_body_bytes": 1 << 20}


def ask(
    tokenizer: PreTrainedTokenizerFast,
    serve: Serve,
    settings: dict[str, Any],
    *bodies: dict[str, Any],
    engine: ScriptedEngine | None = None,
) -> list[httpx.Response]:
    app = application(engine or ScriptedEngine(TWO_WORDS), tokenizer, **{**PLENTY, **settings})
    with httpx.Client(base_url=serve(app), timeout=10) as client:
        return [client.post("/v1/completions", json={"prompt": "a", **body}) for body in bodies]


@pytest.mark.parametrize(
    ("settings", "within", "beyond", "param"),
    [
        ({"max_prompt_tokens": 3}, {"prompt": "a b c"}, {"prompt": "a b c d"}, "prompt"),
        ({"max_prompt_tokens": 3}, {"prompt": [3, 4, 5]}, {"prompt": [3, 4, 5, 6]}, "prompt"),
        ({"max_n": 2}, {"n": 2}, {"n": 3}, "n"),
        ({"max_prompts": 2}, {"prompt": ["a", "b"]}, {"prompt": ["a", "b", "c"]}, "prompt"),
        ({"max_stops": 2}, {"stop": ["x", "y"]}, {"stop": ["x", "y", "z"]}, "stop"),
        ({"max_stops": 0}, {"stop": []}, {"stop": "x"}, "stop"),
        ({"max_stop_characters": 4}, {"stop": "wxyz"}, {"stop": ["v", "vwxyz"]}, "stop"),
        (
            {"max_logit_bias": 2},
            {"logit_bias": {"3": 1, "4": 1}},
            {"logit_bias": {"3": 1, "4": 1, "5": 1}},
            "logit_bias",
        ),
    ],
)
def test_each_limit_has_its_400(
    word_tokenizer: PreTrainedTokenizerFast,
    serve: Serve,
    settings: dict[str, Any],
    within: dict[str, Any],
    beyond: dict[str, Any],
    param: str,
) -> None:
    good, bad = ask(word_tokenizer, serve, settings, within, beyond)
    assert good.status_code == 200
    error = bad.json()["error"]
    assert (bad.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_a_chats_prompt_is_limited_too(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    app = application(ScriptedEngine(TWO_WORDS), word_tokenizer, max_prompt_tokens=3)
    with httpx.Client(base_url=serve(app), timeout=10) as client:
        answers = [
            client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})
            for text in ("a b c", "a b c d")
        ]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert answers[1].json()["error"]["code"] == "context_length_exceeded"


def test_a_large_head_is_431(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    app = application(ScriptedEngine(TWO_WORDS), word_tokenizer, max_header_bytes=2048)
    with httpx.Client(base_url=serve(app), timeout=10) as client:
        assert client.get("/health", headers={"X-Much": "x" * 1500}).status_code == 200
        for answer in (
            client.get("/health", headers={"X-Much": "x" * 3000}),
            client.get("/health", headers={f"X-{n}": "x" * 20 for n in range(100)}),
            client.get("/health?" + "x" * 3000),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (431, "head_too_large")


class Endless(ScriptedEngine):
    """Emits one round of each choice, and then nothing for as long as anybody waits."""

    def submit(self, request: GenerationRequest, sink: EmissionSink) -> None:
        self.submitted.append(request)
        sink(TWO_WORDS[0])


def test_a_request_has_an_end(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    """408 before the first byte; its slot is freed, and OpenAI's client does not ask again."""
    engine = Endless()
    (answer,) = ask(word_tokenizer, serve, {"request_seconds": 0.3}, {}, engine=engine)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (408, "request_timeout")
    assert "0.3 s" in error["message"]
    assert engine.cancelled == [engine.submitted[0].request_id]
    app = application(engine, word_tokenizer, request_seconds=0.3)
    api = openai.OpenAI(base_url=f"{serve(app)}/v1", api_key="none", max_retries=3, timeout=10)
    with pytest.raises(openai.APIStatusError) as raised:
        api.completions.create(model="toy", prompt="a")
    assert raised.value.status_code == 408
    assert len(engine.submitted) == 2


def test_a_stream_that_takes_too_long_ends_with_an_error(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    engine = Endless()
    (answer,) = ask(word_tokenizer, serve, {"request_seconds": 0.3}, {"stream": True}, engine=engine)
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert (answer.status_code, events[-1]) == (200, "[DONE]")
    assert json.loads(events[0])["choices"][0]["text"] == "b "
    assert json.loads(events[-2])["error"]["code"] == "request_timeout"
    assert engine.cancelled == [engine.submitted[0].request_id]


class Busy(ScriptedEngine):
    """Has the next round ready at once, for ever."""

    def submit(self, request: GenerationRequest, sink: EmissionSink) -> None:
        self.submitted.append(request)
        for _ in range(20_000):
            sink(replace(TWO_WORDS[0], text=""))


def test_a_stream_that_never_pauses_ends_too(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    body = {"stream": True, "return_token_ids": True}
    (answer,) = ask(word_tokenizer, serve, {"request_seconds": 0.5}, body, engine=Busy())
    assert "request_timeout" in answer.text


def test_time_begins_with_the_request_not_with_the_engine(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reading the prompt took is part of it."""
    app = application(Endless(), word_tokenizer, request_seconds=1.0)
    render = app.state.context.prompts.render

    def slow(*args: Any) -> str:
        time.sleep(0.8)
        return str(render(*args))

    monkeypatch.setattr(app.state.context.prompts, "render", slow)
    with httpx.Client(base_url=serve(app), timeout=10) as client:
        started = time.monotonic()
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
        taken = time.monotonic() - started
    assert answer.status_code == 408
    assert taken < 1.7  # 1.8 with a clock that starts at the engine
