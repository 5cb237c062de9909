"""Where an answer ends: text, ids, log-probabilities and usage are cut at one place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ALL_K = (1, 2, 3, 5, 8)
NO_EOS = {"with_eos": False}
Worker = Any
Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def chains(start: Start) -> Callable[[int, bool], Worker]:
    """A worker on the chain pair per K, with or without EOS behind the d."""
    made: dict[tuple[int, bool], Worker] = {}

    def get(k: int, with_eos: bool) -> Worker:
        if (k, with_eos) not in made:
            made[k, with_eos] = start("chain", k, pair={} if with_eos else NO_EOS)
        return made[k, with_eos]

    return get


def streamed(worker: Worker, prompt: Any, **body: Any) -> dict[str, Any]:
    """A stream put together again: text, pieces, token count, last finish reason, usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    answer = worker.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **options, **body})
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return {
        "text": "".join(choice["text"] for choice in choices),
        "pieces": [choice["text"] for choice in choices],
        "tokens": sum(len(choice["token_ids"]) for choice in choices),
        "finish_reason": choices[-1]["finish_reason"],
        "usage": chunks[-1]["usage"],
    }


@pytest.mark.parametrize("k", ALL_K)
def test_eos_inside_a_run(chains: Callable[[int, bool], Worker], k: int) -> None:
    """Nothing behind the EOS, for every K, streamed or not; a follow-up sees the whole answer."""
    worker = chains(k, True)
    body = worker.complete("a", max_tokens=20, logprobs=0)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("b c d", "stop", None)
    assert body["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"]) == 4
    stream = streamed(worker, "a", max_tokens=20)
    assert (stream["text"], stream["finish_reason"]) == ("b c d", "stop")
    assert stream["tokens"] == stream["usage"]["completion_tokens"] == 4
    assert worker.complete("a b c d a b")["choices"][0]["text"] == "c d"


@pytest.mark.parametrize("k", ALL_K)
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [(["c"], "b ", 1), (["c d"], "b ", 1), (["b c d e f"], "", 0), (["e", "d e"], "b c ", 2)],
)
def test_stop_strings(
    chains: Callable[[int, bool], Worker], k: int, stop: list[str], text: str, tokens: int
) -> None:
    """The same cut for every K, within a round and over several; no stop text in any chunk."""
    worker = chains(k, False)
    body = worker.complete("a", max_tokens=20, stop=stop, logprobs=1)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")
    assert choice["stop_reason"] in stop
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["completion_tokens"] == tokens
    assert body["usage"]["total_tokens"] == 1 + tokens
    stream = streamed(worker, "a", max_tokens=20, stop=stop)
    assert (stream["text"], stream["tokens"]) == (text, tokens)
    assert not any(one.strip() in piece for one in stop for piece in stream["pieces"])


@pytest.mark.parametrize("limit", range(1, 13))
def test_max_tokens_is_exact(chains: Callable[[int, bool], Worker], limit: int) -> None:
    """Never a token more, whatever the round had accepted."""
    worker = chains(5, False)
    body = worker.complete("a", max_tokens=limit, logprobs=0)
    choice = body["choices"][0]
    assert (body["usage"]["completion_tokens"], choice["finish_reason"]) == (limit, "length")
    assert len(choice["logprobs"]["tokens"]) == limit
    assert streamed(worker, "a", max_tokens=limit)["tokens"] == limit


def test_stop_token_ids_and_ignored_eos(chains: Callable[[int, bool], Worker]) -> None:
    worker = chains(3, True)
    ids = worker.http.post("/tokenize", json={"prompt": "c"}).json()["tokens"]
    choice = worker.complete("a", stop_token_ids=ids)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("b", "stop", ids[0])
    body = worker.complete("a", ignore_eos=True, max_tokens=9)
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (9, "length")


def test_include_the_stop_string(chains: Callable[[int, bool], Worker]) -> None:
    body = chains(8, False).complete("a", max_tokens=20, stop="c d", include_stop_str_in_output=True)
    assert (body["choices"][0]["text"], body["usage"]["completion_tokens"]) == ("b c d", 3)


@pytest.mark.parametrize(("stop", "status"), [("", 400), ([""], 400), (list("abcde"), 400), (None, 200)])
def test_stops_that_are_none(chains: Callable[[int, bool], Worker], stop: Any, status: int) -> None:
    answer = chains(3, True).http.post("/v1/completions", json={"prompt": "a", "stop": stop})
    assert answer.status_code == status


def test_prompts_that_are_none_harm_nothing(chains: Callable[[int, bool], Worker]) -> None:
    """400 at the door, and the next request is served."""
    http = chains(3, True).http
    bodies = [{"prompt": ""}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [999999]}, {"prompt": [-1]}]
    bodies += [{"prompt": [[-1]]}, {"prompt": "a", "logit_bias": {"191222": 1}}]
    assert [http.post("/v1/completions", json=body, timeout=2).status_code for body in bodies] == [400] * 7
    empty = {"messages": [{"role": "user", "content": ""}]}
    assert http.post("/v1/chat/completions", json=empty, timeout=2).status_code == 400
    assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_list_of_prompts(chains: Callable[[int, bool], Worker]) -> None:
    """Six choices, each what its prompt gives alone."""
    worker = chains(3, True)
    prompts = ["a", "a b", "a b c"]
    choices = worker.complete(prompts, n=2)["choices"]
    alone = [worker.complete(prompt)["choices"][0]["text"] for prompt in prompts for _ in range(2)]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [choice["text"] for choice in choices] == alone == ["b c d", "b c d", "c d", "c d", "d", "d"]


def test_one_chunk_per_round(chains: Callable[[int, bool], Worker]) -> None:
    """Documented chunking; the chunks' tokens add up to the usage."""
    stream = streamed(chains(8, False), "a", max_tokens=20)
    assert stream["tokens"] == stream["usage"]["completion_tokens"] == 20
    assert 2 <= len(stream["pieces"]) <= 4
