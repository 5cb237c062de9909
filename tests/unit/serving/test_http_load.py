"""Requests that are wrong or huge cost the others nothing: the server's loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.engine.interface import TokenLogprob
from redraft_serving.http.logprobs import TokenTexts, chat_logprobs
from redraft_serving.http.prompts import PromptReader
from redraft_serving.http.served import ServedModel
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application

Serve = Callable[[FastAPI], str]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def reader(word_tokenizer: PreTrainedTokenizerFast) -> PromptReader:
    return PromptReader(ServedModel("toy", word_tokenizer, len(word_tokenizer), 64, "t", "t", "d"))


@pytest.fixture
def client(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    app = application(engine, word_tokenizer, max_body_bytes=1 << 20)
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        made.app = app  # type: ignore[attr-defined]
        yield made


def count_encodings(reader: PromptReader, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that the reader tokenizes from now on."""
    seen: list[str] = []
    encode = reader._encode

    def counted(text: str, add_special_tokens: bool) -> tuple[int, ...]:
        seen.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(reader, "_encode", counted)
    return seen


def test_too_many_prompts_are_refused_unread(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of short texts would keep the tokenizer busy for minutes."""
    seen = count_encodings(client.app.state.context.prompts, monkeypatch)  # type: ignore[attr-defined]
    answer = client.post("/v1/completions", json={"prompt": ["a"] * 2000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert not seen


def test_a_long_text_holds_no_short_one_up(reader: PromptReader) -> None:
    """While a thread tokenizes, the loop goes on, and a short text waits without blocking it."""

    async def ticks_while_busy() -> int:
        reader._lock.acquire()
        threading.Timer(0.3, reader._lock.release).start()
        short = asyncio.create_task(reader.encode("a", False))
        ticks = 0
        while not short.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert len(short.result()) == 1
        return ticks

    assert asyncio.run(ticks_while_busy()) >= 5


def test_many_texts_leave_turns_to_others(reader: PromptReader) -> None:
    async def turns() -> int:
        count = 0

        async def other() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        watching = asyncio.create_task(other())
        for _ in range(20):
            await reader.encode("a b c", False)
        watching.cancel()
        return count

    assert asyncio.run(turns()) >= 20


def test_texts_of_tokens_are_decoded_once(
    word_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long answer with twenty alternatives at each place names the same tokens over and over."""
    calls: list[Any] = []
    decode = word_tokenizer.decode

    def counted(ids: list[int]) -> Any:
        calls.append(ids)
        return decode(ids)

    monkeypatch.setattr(word_tokenizer, "decode", counted)
    found = [TokenLogprob(4, -0.5, tuple((token, -1.0) for token in range(3, 9)))] * 100
    body = chat_logprobs(TokenTexts(word_tokenizer), found)
    assert body["content"][0]["top_logprobs"][0] == {"token": "a", "logprob": -1.0, "bytes": [97]}
    assert len(calls) <= 6


def test_a_bias_is_read_once_for_all_choices(client: httpx.Client, engine: ScriptedEngine) -> None:
    request = {"prompt": ["a", "b"], "n": 4, "seed": 7, "logit_bias": {"3": 1.5}}
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=request, timeout=0.3)
    settings = [one.sampling for one in engine.submitted]
    assert len(settings) == 8
    assert len({id(one.logit_bias) for one in settings}) == 1
    assert len({one.seed for one in settings}) == 4


@pytest.mark.parametrize("tail", ["[" * 800 + "]" * 800, '"\\ud800"'])
def test_templates_that_cannot_be_filled(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve, tail: str
) -> None:
    app = application(engine, word_tokenizer, max_body_bytes=1 << 20)
    app.state.context.prompts.tokenizer.chat_template = "{{ messages[0]['content'] }}{{ tail }}"
    body = f'{{"messages":[{{"role":"user","content":"a"}}],"chat_template_kwargs":{{"tail":{tail}}}}}'
    with httpx.Client(base_url=serve(app), timeout=10) as client:
        answer = client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
    assert answer.status_code == 400


def test_an_unexpected_fault_has_a_request_id(client: httpx.Client, engine: ScriptedEngine) -> None:
    """The server closes the connection after it, and says so: the client's next request takes a new one."""
    engine.fault = RuntimeError("a fault")
    answer = client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert client.get("/health").status_code == 200


def test_a_fault_while_choices_are_handed_over_frees_those_that_run(
    client: httpx.Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would read them: whatever goes wrong at the second choice, the first is cancelled."""
    submit = engine.submit

    def failing(request: Any, sink: Any) -> None:
        if engine.submitted:
            raise RuntimeError("a fault")
        submit(request, sink)

    monkeypatch.setattr(engine, "submit", failing)
    assert client.post("/v1/completions", json={"prompt": "a", "n": 2}).status_code == 500
    deadline = time.monotonic() + 5
    while not engine.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.cancelled == [engine.submitted[0].request_id]
