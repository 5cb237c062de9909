"""The HTTP face over a scripted engine: what no healthy engine does, and every way a request can be wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from redraft_models.adapter import Adapter
from redraft_serving.engine.interface import (
    CHAMPION,
    Arm,
    DraftStatistics,
    Emission,
    EmissionSink,
    EngineDead,
    EngineFull,
    EngineStatistics,
    GenerationRequest,
    RequestStatistics,
    SwapResult,
    TokenLogprob,
)
from redraft_serving.http.app import build_app
from redraft_serving.http.domains import Domains
from redraft_serving.http.generation import Generation
from redraft_serving.http.logprobs import TokenTexts
from redraft_serving.http.sampling import choice_seed
from redraft_serving.http.served import ServedModel
from redraft_serving.policy.types import Setting
from redraft_serving.settings import ServingSettings
from transformers import PreTrainedTokenizerFast

Serve = Callable[[FastAPI], str]


@dataclass
class ScriptedEngine:
    """Plays the same emissions for every choice; `places` choices fit."""

    script: tuple[Emission, ...] = ()
    places: int = 1000
    alive: bool = True
    num_speculative_tokens: Setting = 3
    max_speculative_tokens: int = 8
    max_model_len: int = 64
    max_num_seqs: int = 8
    submitted: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    fault: Exception | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def submit(self, request: GenerationRequest, sink: EmissionSink) -> None:
        if self.fault is not None:
            raise self.fault
        if not self.alive:
            raise EngineDead("dead")
        if len(self.submitted) >= self.places:
            raise EngineFull(self.places, retry_after_seconds=3)
        self.submitted.append(request)
        for emission in self.script:
            sink(emission)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def configure(self, domain: str, num_speculative_tokens: Setting | None) -> None: ...

    def swap(
        self, domain: str, adapter: Adapter | None, version: int | str, arm: Arm = CHAMPION
    ) -> Future[SwapResult]:
        raise NotImplementedError

    def retire(self, domain: str, arm: Arm) -> None: ...

    def statistics(self) -> EngineStatistics:
        draft = DraftStatistics("default", "base", 0, 0, 0, 0, 0, (), (), None, None, 3, "speculating")
        return EngineStatistics(0, 0, 0, 0, 0, 0, {}, (), (), 0, {}, {}, (draft,))


ENDED = RequestStatistics(
    rounds=1, proposed=3, tested=2, accepted=1, emitted=2, accepted_histogram=(0, 1), draft_versions=((4, 1),)
)
TWO_WORDS = (
    Emission("b ", (4,), (TokenLogprob(4, -0.5, ((4, -0.5),)),)),
    Emission("c", (5,), (TokenLogprob(5, float("-inf")),), finish_reason="length", statistics=ENDED),
)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(TWO_WORDS)


def application(engine: ScriptedEngine, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> FastAPI:
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
    model = ServedModel("toy", tokenizer, len(tokenizer), 64, "target", "tokenizer", "draft")
    settings = {"max_n": 4, "max_body_bytes": 4096, **settings}
    return build_app(engine, model, ServingSettings(**settings), Domains("default", limit=3))


@pytest.fixture
def client(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serve(application(engine, word_tokenizer)), timeout=10) as made:
        yield made


def official(client: httpx.Client) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0, timeout=10)


def complete(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "a", **body})


def chat(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], **body})


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


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [999999]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[-1]]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": " ".join("a" * 64)}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 64}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 5}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": 3}, "stop"),
    ({"logit_bias": {"191222": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"4": 101}}, "logit_bias"),
    ({"stop_token_ids": [10_000]}, "stop_token_ids"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"num_speculative_tokens": 9}, "num_speculative_tokens"),
    ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
    ({"num_speculative_tokens": "many"}, "num_speculative_tokens"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"echo": True}, "echo"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"guided_regex": "a*"}, "guided_regex"),
]


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


def test_fields_that_ask_for_nothing_are_taken(client: httpx.Client) -> None:
    neutral = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "stop": None}
    ignored = {"user": "me", "metadata": {}, "service_tier": "auto", "prediction": None, "something": 1}
    assert chat(client, **neutral, **ignored, best_of=1, n=None, seed=None).status_code == 200


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


def test_a_worker_that_stops_takes_no_more(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    app = application(engine, word_tokenizer)
    with httpx.Client(base_url=serve(app)) as client:
        app.state.context.draining = True
        assert complete(client).status_code == client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


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
