"""Completions and chats over a scripted engine: what is asked for reaches it, and what it says is told."""

from __future__ import annotations

import json

import httpx
import pytest
from redraft_serving.http.sampling import choice_seed

from .scripted import ScriptedEngine, chat, complete, official


def test_completion_and_its_counts(client: httpx.Client) -> None:
    body = complete(client, logprobs=1, return_token_ids=True).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("b c", "length", [4, 5])
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -9999.0]
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["completion_tokens"] == 2
    speculation = body["metrics"]["speculative_decoding"]
    assert speculation["acceptance_rate"] == 0.5
    assert speculation["draft_acceptance_rate"] == pytest.approx(1 / 3)
    assert speculation["mean_acceptance_length"] == 2.0
    assert (speculation["draft_version"], speculation["domain"]) == (4, "default")


def test_stream_as_bytes(client: httpx.Client) -> None:
    """The events of a chat stream, one by one, as OpenAI and vLLM send them."""
    answer = chat(client, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "b "}, {"content": "c"}]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 3
    assert chunks[-1]["choices"] == []
    counts = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert chunks[-1]["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_tested_tokens"] == 2
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_n_choices_have_their_own_seeds(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = official(client).completions.create(model="toy", prompt=["a", "b"], n=2, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [request.choice for request in engine.submitted] == [0, 1, 2, 3]
    assert [request.sampling.seed for request in engine.submitted] == [7, choice_seed(7, 1)] * 2
    assert len({choice_seed(7, choice) for choice in range(16)}) == 16
    assert len({request.request_id for request in engine.submitted}) == 1


def test_options_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = {"top_k": -1, "top_p": 0, "min_p": 0.1, "logit_bias": {"4": 2}, "store": False, "stop": "x"}
    headers = {"X-Redraft-Domain": "law"}
    client.post(
        "/v1/completions", json={"prompt": [3, 4], "num_speculative_tokens": 0, **body}, headers=headers
    )
    request = engine.submitted[0]
    assert (request.prompt_ids, request.max_tokens, request.domain) == ((3, 4), 16, "law")
    assert (request.capture, request.num_speculative_tokens, request.stop) == (False, 0, ("x",))
    sampling = request.sampling
    assert (sampling.top_k, sampling.min_p, sampling.logit_bias) == (0, 0.1, {4: 2})
    assert 0 < sampling.top_p < 1e-6
    chat(client)
    assert engine.submitted[1].max_tokens == 63


def test_fields_that_ask_for_nothing_are_taken(client: httpx.Client) -> None:
    neutral = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "stop": None}
    ignored = {"user": "me", "metadata": {}, "service_tier": "auto", "prediction": None, "something": 1}
    assert chat(client, **neutral, **ignored, best_of=1, n=None, seed=None).status_code == 200
