"""Predicted outputs, usage details and how far to speculate, over HTTP: what is taken, refused and told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.engine.interface import Emission, RequestStatistics
from redraft_serving.http.prompts import PromptReader
from redraft_serving.http.served import ServedModel
from transformers import PreTrainedTokenizerFast

from .scripted import ENDED, TWO_WORDS, ScriptedEngine, application, chat, complete, official
from .test_http_load import count_encodings

Serve = Callable[[FastAPI], str]

TOLD = replace(
    ENDED,
    queue_seconds=0.25,
    prefill_seconds=0.5,
    decode_seconds=2.0,
    cached_tokens=1,
    prediction_accepted=5,
    prediction_rejected=2,
    proposers={"prediction": 3, "plain": 1},
)
"""A choice whose draft accepted 1 of 3, and whose prediction 5 of 7."""
GUESS = {"type": "content", "content": "b c"}


def script(statistics: RequestStatistics) -> tuple[Emission, ...]:
    return (TWO_WORDS[0], replace(TWO_WORDS[1], statistics=statistics))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(script(TOLD))


@pytest.fixture
def client(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    app = application(engine, word_tokenizer)
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        made.app = app  # type: ignore[attr-defined]
        yield made


def test_the_official_client_sends_a_prediction(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = official(client).chat.completions.create(
        model="toy",
        messages=[{"role": "user", "content": "a"}],
        prediction={
            "type": "content",
            "content": [{"type": "text", "text": "b "}, {"type": "text", "text": "c"}],
        },
    )
    assert engine.submitted[0].prediction_ids == (4, 5)
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 2)
    assert answer.usage.completion_tokens == 2
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


def test_plain_completions_take_one_as_an_extra(client: httpx.Client, engine: ScriptedEngine) -> None:
    official(client).completions.create(model="toy", prompt="a", extra_body={"prediction": GUESS})
    assert engine.submitted[0].prediction_ids == (4, 5)


@pytest.mark.parametrize("ask", [complete, chat])
def test_without_a_prediction_nothing_is_told_of_one(
    client: httpx.Client, ask: Callable[..., httpx.Response]
) -> None:
    """Above all not what drafts proposed: clients read these as tokens of their own prediction."""
    for body in ({}, {"prediction": None}, {"prediction": {"type": "content", "content": ""}}):
        usage = ask(client, **body).json()["usage"]
        assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}


def test_streams_tell_the_details_at_their_end(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = chat(client, prediction=GUESS, stream=True, stream_options=options)
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    chunks = [json.loads(event) for event in events[:-1]]
    assert "completion_tokens_details" not in chunks[1]["usage"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert chunks[-1]["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 2,
    }
    assert chunks[-1]["metrics"]["speculative_decoding"]["proposers"] == {"prediction": 3, "plain": 1}


WRONG: list[Any] = [
    "b c",
    ["b c"],
    7,
    {},
    {"type": "content"},
    {"content": "b c"},
    {"type": "text", "content": "b c"},
    {"type": "content", "content": None},
    {"type": "content", "content": 7},
    {"type": "content", "content": {"text": "b"}},
    {"type": "content", "content": ["b"]},
    {"type": "content", "content": [{"type": "text"}]},
    {"type": "content", "content": [{"type": "text", "text": 5}]},
    {"type": "content", "content": [{"type": "image_url", "image_url": "x"}]},
    {"type": "content", "content": " ".join("a" * 65)},
]


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize(
    "wrong", WRONG, ids=lambda value: str(value)[:40].encode("ascii", "replace").decode()
)
def test_wrong_predictions_are_refused_in_a_sentence(
    client: httpx.Client, engine: ScriptedEngine, ask: Callable[..., httpx.Response], wrong: Any
) -> None:
    answer = ask(client, prediction=wrong)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "prediction")
    assert error["message"].endswith(".")
    assert len(error["message"]) < 250
    assert engine.submitted == []


def test_half_a_character_is_refused(client: httpx.Client) -> None:
    body = json.dumps({"prompt": "a", "prediction": {"type": "content", "content": "\ud800"}})
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prediction")


def test_a_prediction_may_fill_the_window(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert complete(client, prediction={"type": "content", "content": " ".join("a" * 64)}).status_code == 200
    assert len(engine.submitted[0].prediction_ids) == 64


@pytest.mark.parametrize(
    ("body", "param"), [({"n": 2}, "n"), ({"prompt": ["a", "b"]}, "prompt"), ({"n": 2, "prompt": ["a"]}, "n")]
)
def test_a_prediction_is_of_one_answer(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], param: str
) -> None:
    """As at OpenAI; and refused before anything is tokenized."""
    seen = count_encodings(client.app.state.context.prompts, monkeypatch)  # type: ignore[attr-defined]
    answer = complete(client, prediction=GUESS, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not seen


def test_what_openai_refuses_without_need_is_taken(client: httpx.Client) -> None:
    """Log-probabilities and penalties are those of the answer, whoever proposed it."""
    body = {"logprobs": True, "presence_penalty": 1, "frequency_penalty": 1, "max_completion_tokens": 5}
    assert chat(client, prediction=GUESS, **body).status_code == 200


def test_a_prediction_has_no_special_tokens_added(
    byte_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beginning-of-text in front would be a first token that no answer has."""
    reader = PromptReader(ServedModel("toy", byte_tokenizer, len(byte_tokenizer), 64, "t", "t", "d"))
    asked: list[bool] = []
    encode = reader._encode
    monkeypatch.setattr(
        reader, "_encode", lambda text, special: (asked.append(special), encode(text, special))[1]
    )
    assert asyncio.run(reader.prediction("cat"))
    assert asyncio.run(reader.prediction("")) == asyncio.run(reader.prediction(None)) == ()
    assert asked == [False]


def test_cached_tokens_of_choices_and_prompts(client: httpx.Client, engine: ScriptedEngine) -> None:
    """Never more than the prompts have: what a choice found of its sibling's work is no cached prompt."""
    seen = iter([0, 1, 1, 1])
    submit = engine.submit

    def told(request: Any, sink: Any) -> None:
        engine.script = script(replace(TOLD, cached_tokens=next(seen)))
        submit(request, sink)

    engine.submit = told  # type: ignore[method-assign]
    usage = complete(client, prompt=["a", "b"], n=2).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]) == (2, {"cached_tokens": 1})


def test_times_apart(client: httpx.Client) -> None:
    metrics = complete(client).json()["metrics"]
    times = ("queue_time_ms", "prefill_time_ms", "generation_time_ms", "mean_itl_ms")
    assert [metrics[name] for name in times] == [250, 500, 2000, 2000]


@pytest.mark.parametrize("asked", ["auto", 0, 8, None])
def test_the_setting_asked_for_is_told(client: httpx.Client, engine: ScriptedEngine, asked: Any) -> None:
    body = {} if asked is None else {"num_speculative_tokens": asked}
    answer = official(client).completions.create(model="toy", prompt="a", extra_body=body)
    assert engine.submitted[0].num_speculative_tokens == asked
    speculation = answer.metrics["speculative_decoding"]  # type: ignore[attr-defined]
    assert speculation["num_speculative_tokens"] == asked
    assert speculation["proposers"] == {"prediction": 3, "plain": 1}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("many", "must be \"auto\", a whole number from 0 on, or null; got 'many'."),
        ("3", "must be \"auto\", a whole number from 0 on, or null; got '3'."),
        (-1, 'must be "auto", a whole number from 0 on, or null; got -1.'),
        (2.5, 'must be "auto", a whole number from 0 on, or null; got 2.5.'),
        (True, 'must be "auto", a whole number from 0 on, or null; got True.'),
        (9, 'is 9; this server proposes at most 8. Send a number up to that, or "auto".'),
    ],
)
def test_wrong_settings_are_told_the_right_ones(client: httpx.Client, asked: Any, sentence: str) -> None:
    error = complete(client, num_speculative_tokens=asked).json()["error"]
    assert error["param"] == "num_speculative_tokens"
    assert error["message"].removeprefix("num_speculative_tokens").lstrip(": ") == sentence


def test_the_schema_names_both_fields(client: httpx.Client) -> None:
    properties = client.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    assert {"prediction", "num_speculative_tokens"} <= set(properties)
