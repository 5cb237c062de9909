"""Streams in pieces of at least so many tokens: what is joined, what is held back, and that all comes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.engine.interface import Emission, RequestStatistics, TokenLogprob
from redraft_serving.http.pieces import Pieces
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application

Serve = Callable[[FastAPI], str]
SIZES = (1, 4, 2, 1, 3, 2, 4)


def rounds(sizes: tuple[int, ...] = SIZES) -> tuple[Emission, ...]:
    """Rounds that gave so many tokens each, of one word per token."""
    script = []
    for at, size in enumerate(sizes):
        ids = tuple(3 + (at + token) % 7 for token in range(size))
        logprobs = tuple(TokenLogprob(one, -0.5) for one in ids)
        script.append(Emission("".join(f"{'abcdefg'[one - 3]} " for one in ids), ids, logprobs))
    ended = RequestStatistics(rounds=len(sizes), emitted=sum(sizes))
    last = script[-1]
    script[-1] = Emission(last.text, last.token_ids, last.logprobs, "length", statistics=ended)
    return tuple(script)


def stream(
    engine: ScriptedEngine, tokenizer: PreTrainedTokenizerFast, serve: Serve, interval: int, **body: Any
) -> list[dict[str, Any]]:
    app = application(engine, tokenizer, stream_interval=interval)
    with httpx.Client(base_url=serve(app), timeout=10) as client:
        request = {"prompt": "a", "max_tokens": 40, "stream": True, "return_token_ids": True, "logprobs": 0}
        text = client.post("/v1/completions", json={**request, **body}).text
    events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def sizes_of(chunks: list[dict[str, Any]], index: int = 0) -> list[int]:
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return [len(choice["token_ids"]) for choice in choices if choice["index"] == index]


@pytest.mark.parametrize(("interval", "expected"), [(1, list(SIZES)), (4, [5, 6, 6]), (40, [17])])
def test_pieces_have_at_least_the_interval(
    word_tokenizer: PreTrainedTokenizerFast, serve: Serve, interval: int, expected: list[int]
) -> None:
    engine = ScriptedEngine(rounds())
    chunks = stream(engine, word_tokenizer, serve, interval)
    assert sizes_of(chunks) == expected
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "".join(one.text for one in rounds())
    assert [one for choice in choices for one in choice["token_ids"]] == [
        token for one in rounds() for token in one.token_ids
    ]
    assert all(len(choice["logprobs"]["tokens"]) == len(choice["token_ids"]) for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


def test_usage_on_the_way_counts_what_was_sent(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    """Or else it would tell what is held back."""
    options = {"continuous_usage_stats": True, "include_usage": True}
    chunks = stream(ScriptedEngine(rounds()), word_tokenizer, serve, 4, n=2, stream_options=options)
    sent = 0
    for chunk in chunks:
        sent += sum(len(choice["token_ids"]) for choice in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == sent
    assert sent == 2 * sum(SIZES)
    assert sizes_of(chunks, 0) == sizes_of(chunks, 1) == [5, 6, 6]


def test_what_was_held_comes_before_the_error(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> None:
    script = (*rounds()[:2], Emission("", (), finish_reason="error", error="the logits are not finite"))
    chunks = stream(ScriptedEngine(script), word_tokenizer, serve, 40)
    assert sizes_of(chunks) == [5]
    assert "not finite" in chunks[-1]["error"]["message"]


def test_sizes_tell_less_of_the_rounds() -> None:
    """At an interval of 16 and rounds of up to 5 tokens, pieces are 16 to 20 long; sent as they come, each
    says exactly what its round accepted.
    """
    random.seed(5)
    script = rounds(tuple(random.randint(1, 5) for _ in range(400)))
    pieces = Pieces(16)
    sizes = [len(one.token_ids) for emission in script if (one := pieces.add(0, emission)) is not None]
    assert pieces.held == 0
    assert sum(sizes) == sum(len(one.token_ids) for one in script)
    assert {*sizes[:-1]} <= {16, 17, 18, 19, 20}
