"""What a client learns of a fault: a sentence and the request's id, and nothing of our insides."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.http import schemas
from redraft_serving.http.served import public_name
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application
from .wrong_requests import WRONG

Serve = Callable[[FastAPI], str]
INSIDES = re.compile(
    r"Traceback|File \"|\.py\b|redraft_|pydantic|jinja|/work|/usr|/home|Error\(|Exception|0x[0-9a-f]{6}"
)
CLASSES = [name for name, kind in vars(schemas).items() if isinstance(kind, type) and name != "Any"]


@pytest.fixture
def client(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    app = application(engine, word_tokenizer, max_body_bytes=1 << 20)
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        made.app = app  # type: ignore[attr-defined]
        yield made


def check_plain(answer: httpx.Response) -> None:
    """One sentence in OpenAI's form."""
    error = answer.json()["error"]
    assert error["message"].endswith(".")
    assert "\n" not in error["message"]
    told = json.dumps(error)
    assert not INSIDES.search(told), told
    assert not [name for name in CLASSES if re.search(rf"\b{name}\b", error["message"])], told


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_tells_its_request_id_alone(
    client: httpx.Client, engine: ScriptedEngine, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it comes before the answer, and where it comes while that is written."""
    context = client.app.state.context  # type: ignore[attr-defined]
    if stream:
        monkeypatch.setattr(context.texts, "text", None)
    else:
        engine.fault = ZeroDivisionError("/secret/weights.safetensors in KeyManager")
    body = {"prompt": "a", "stream": stream, "logprobs": 1}
    answer = client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-7"})
    if stream:
        assert answer.status_code == 200
        (told,) = [part for part in answer.text.split("\n\n") if '"error"' in part]
        answer = httpx.Response(500, text=told.removeprefix("data: "))
    assert answer.status_code == 500
    assert "mine-7" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    check_plain(answer)


STRANGE: list[tuple[str, Any]] = [
    ("/v1/completions", {"prompt": "a", "stream_options": 5, "stream": True}),
    ("/v1/completions", {"prompt": "a", "stream_options": [], "stream": True}),
    ("/v1/completions", {"prompt": "a", "logit_bias": []}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"3": {}}}),
    ("/v1/completions", {"prompt": "a", "user": {}}),
    ("/v1/completions", []),
    ("/v1/completions", "text"),
    ("/v1/completions", None),
    ("/v1/chat/completions", {"messages": [5]}),
    ("/v1/chat/completions", {"messages": {"role": "user"}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [5]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [None]}]}),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 5}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "prediction": 5}),
    ("/tokenize", {"messages": 5}),
    ("/tokenize", {}),
    ("/detokenize", {"tokens": ["a"]}),
    ("/detokenize", {"tokens": [10**12]}),
    ("/v1/drafts/default/speculation", {"num_speculative_tokens": []}),
    ("/v1/drafts/default/speculation", 5),
    ("/v1/drafts/default/promote", {"version": {}}),
    ("/v1/nowhere", {}),
]


@pytest.mark.parametrize(("path", "body"), STRANGE, ids=lambda value: str(value)[:60])
def test_strange_bodies_meet_no_class_of_ours(client: httpx.Client, path: str, body: Any) -> None:
    answer = client.post(path, json=body)
    assert 400 <= answer.status_code < 500
    check_plain(answer)


@pytest.mark.parametrize(("body", "_"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_fields_meet_none_either(client: httpx.Client, body: dict[str, Any], _: str) -> None:
    content = json.dumps({"prompt": "a", **body})
    headers = {"Content-Type": "application/json"}
    check_plain(client.post("/v1/completions", content=content, headers=headers))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[0].missing.more }}", "can't be filled"),
        ("{{ 'a' + 5 }}", "can't be filled"),
        ("{{ messages[9].content }}", "can't be filled"),
        ("{{ ''.__class__.__mro__ }}", "can't be filled"),
    ],
)
def test_a_template_speaks_for_itself_or_not_at_all(client: httpx.Client, template: str, words: str) -> None:
    client.app.state.context.prompts.tokenizer.chat_template = template  # type: ignore[attr-defined]
    answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
    assert (answer.status_code, words in answer.text) == (400, True)
    check_plain(answer)


def test_a_models_name_is_no_path(tmp_path: Path) -> None:
    """It stands in every answer, and in the error for a wrong one."""
    folder = tmp_path / "SmolLM2"
    folder.mkdir()
    assert [public_name(source) for source in (str(folder), f"{folder}/", "/gone/model.gguf")] == [
        "SmolLM2",
        "SmolLM2",
        "model.gguf",
    ]
    assert [public_name(source) for source in ("default", "org/model-1B")] == ["default", "org/model-1B"]


def test_the_log_names_the_request_of_a_fault(
    client: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.fault = ZeroDivisionError("a fault")
    with caplog.at_level(logging.ERROR, logger="redraft_serving"):
        client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "mine-8"})
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("redraft")]
    assert "mine-8" in message
    assert "ZeroDivisionError: a fault" in message
