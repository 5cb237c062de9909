"""Every way a request can be wrong: refused in one sentence that names the field."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from .scripted import chat, complete, official
from .wrong_requests import WRONG


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_requests_name_the_field(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    content = json.dumps({"prompt": "a", **body})
    answer = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].endswith(".")
    assert "\n" not in error["message"]
    assert complete(client).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 64}, "max_completion_tokens"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ],
)
def test_wrong_chats_name_the_field(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = chat(client, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"prompt": "a"', "application/json", 400),
        (b"[]", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"prompt": "a"}', "text/plain", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 4000, "application/json", 400),
        (b'{"prompt": "' + b"a" * 5000 + b'"}', "application/json", 413),
    ],
)
def test_bodies_that_are_no_request(client: httpx.Client, content: bytes, kind: str, status: int) -> None:
    answer = client.post("/v1/completions", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_body_without_a_length_is_limited_too(client: httpx.Client) -> None:
    chunks = (b'{"prompt": "' if at == 0 else b"a" * 1000 for at in range(8))
    answer = client.post("/v1/completions", content=chunks, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")


def test_official_client_meets_typed_errors(client: httpx.Client) -> None:
    api = official(client)
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(model="gpt", prompt="a")
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("gpt")
    assert api.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.BadRequestError) as wrong:
        api.chat.completions.create(model="toy", messages=[])
    assert wrong.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        api.embeddings.create(model="toy", input="a")
