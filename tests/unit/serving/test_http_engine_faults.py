"""What no healthy engine does: full, dead, broken, stopping; and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable

import httpx
import openai
import pytest
from fastapi import FastAPI
from redraft_serving.engine.interface import (
    Emission,
    GenerationRequest,
)
from redraft_serving.http.generation import Generation
from transformers import PreTrainedTokenizerFast

from .scripted import TWO_WORDS, ScriptedEngine, application, complete, official

Serve = Callable[[FastAPI], str]


def test_full_queue(client: httpx.Client, engine: ScriptedEngine) -> None:
    """All or nothing: with one place left, a request for two gets 429 and keeps no place."""
    engine.places, engine.script = 1, ()
    answer = complete(client, n=2)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert engine.cancelled == [engine.submitted[0].request_id]
    with pytest.raises(openai.RateLimitError):
        official(client).completions.create(model="toy", prompt="a")


def test_more_choices_than_places_can_never_run(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    app = application(engine, word_tokenizer, max_num_seqs=2, max_waiting=1)
    with httpx.Client(base_url=serve(app)) as client:
        assert complete(client, prompt=["a", "b"], n=2).json()["error"]["param"] == "prompt"
        assert complete(client, prompt=["a", "b", "c"]).status_code == 200


def test_dead_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    engine.alive = False
    assert client.get("/health").status_code == client.get("/ready").status_code == 503
    with pytest.raises(openai.InternalServerError) as error:
        official(client).completions.create(model="toy", prompt="a")
    assert error.value.status_code == 503


def test_engine_dies_during_a_request(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = TWO_WORDS[:1]
    threading.Timer(0.3, lambda: setattr(engine, "alive", False)).start()
    started = time.monotonic()
    assert complete(client).status_code == 503
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("abort", 503)])
def test_ends_that_are_no_answer(
    client: httpx.Client, engine: ScriptedEngine, reason: str, status: int
) -> None:
    engine.script = (TWO_WORDS[0], Emission("", (), finish_reason=reason, error="the logits are not finite"))
    answer = complete(client)
    assert answer.status_code == status
    assert ("not finite" in answer.json()["error"]["message"]) == (status == 500)
    stream = official(client).completions.create(model="toy", prompt="a", stream=True)
    with pytest.raises(openai.APIError):
        list(stream)
    assert complete(client, stream=True).text.endswith("data: [DONE]\n\n")


def test_unexpected_fault(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.fault = RuntimeError("/secret/path")
    answer = complete(client)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in answer.text


def test_a_worker_that_stops_takes_no_more(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    app = application(engine, word_tokenizer)
    with httpx.Client(base_url=serve(app)) as client:
        app.state.context.draining = True
        assert complete(client).status_code == client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_is_cancelled(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    """Nothing more is emitted, and still the engine hears of it at once."""
    engine.script = TWO_WORDS[:1]
    body = json.dumps({"prompt": "a", "stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        if stream:
            connection.recv(100)
        else:
            time.sleep(0.2)
        assert engine.cancelled == []
    deadline = time.monotonic() + 2
    while not engine.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.cancelled == [engine.submitted[0].request_id]


@pytest.mark.parametrize("ticks", range(5))
def test_leaving_at_the_moment_of_a_token_is_noticed(ticks: int) -> None:
    """A cancellation that meets an emission, whatever the order in the loop, ends the wait."""

    async def leave() -> bool:
        engine = ScriptedEngine()
        request = GenerationRequest("r", "default", (3,), 5)
        generation = Generation(engine, [request])
        generation.submit()
        task = asyncio.create_task(generation.collect())
        await asyncio.sleep(0.01)
        generation._queue.put_nowait((0, TWO_WORDS[0]))
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
        return task.cancelled()

    assert asyncio.run(leave())
