"""The load generator against a small server: what came when, from servers that tell token ids or do not."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from redraft_ops.bench.answers import Ask
from redraft_ops.bench.load import Endpoint
from redraft_ops.bench.loops import closed_loop, open_loop
from redraft_ops.bench.worker import find_endpoint

COUNTS = {
    "mean_acceptance_length": 3.0,
    "num_tested_tokens": 4,
    "num_accepted_draft_tokens": 2,
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the first id of the prompt, or by its text."""

    seen: ClassVar[list[tuple[str, dict[str, Any], dict[str, str]]]] = []
    running: ClassVar[int] = 0
    most: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "small"}]}).encode() if self.path == "/v1/models" else b""
        self.send_response(200 if self.path in ("/v1/models", "/ready") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            Handler.seen.append((self.path, body, dict(self.headers)))
            Handler.running += 1
            Handler.most = max(Handler.most, Handler.running)
        whole = self.answer(body)
        with self.lock:
            Handler.running -= 1
        if whole:  # the client may ask again as soon as it reads this
            self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, body: dict[str, Any]) -> bool:
        """Everything but the last line; False where that does not follow."""
        kind = body["prompt"][0] if isinstance(body.get("prompt"), list) else 0
        if kind == 429:
            self.send_error(429)
            return False
        self.send_response(200)
        self.end_headers()
        if "messages" in body:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            self.event({"choices": [{"delta": {"content": "one two"}}]})
            self.event({"choices": [{"delta": {"content": " three"}}]})
            self.event({"choices": [], "usage": {"completion_tokens": 5}})
        else:
            self.event({"choices": [{"text": "a", "token_ids": [1, 2]}]})
            if kind == 1:
                return False
            if kind == 2:
                self.event({"error": {"message": "not finite"}})
            time.sleep(0.02)
            self.event({"choices": [{"text": "", "token_ids": [3]}]})
            self.event({"choices": [{"text": "b", "token_ids": [4, 5, 6], "finish_reason": "length"}]})
            usage = {"completion_tokens": 6}
            self.event({"choices": [], "usage": usage, "metrics": {"speculative_decoding": COUNTS}})
        return True

    def event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.seen, Handler.running, Handler.most = [], 0, 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_our_server_is_asked_by_ids_and_tells_ids(url: str) -> None:
    ask = Ask(4, (0, 8, 9), 6, domain="legal", ignore_eos=True, temperature=0.5, seed=3)
    endpoint = Endpoint(url, "toy", key="secret")
    answer = endpoint.send(ask, time.perf_counter(), {"num_speculative_tokens": 3, "store": False})
    assert (answer.index, answer.ids, answer.text, answer.error) == (4, (1, 2, 3, 4, 5, 6), "ab", None)
    assert [tokens for _, tokens in answer.chunks] == [2, 1, 3]
    assert (answer.rounds, answer.tested, answer.accepted) == (2, 4, 2)
    assert 0 < answer.chunks[0][0] < answer.chunks[1][0] <= answer.seconds
    path, body, headers = Handler.seen[0]
    assert (path, body["prompt"], body["max_tokens"]) == ("/v1/completions", [0, 8, 9], 6)
    assert (body["num_speculative_tokens"], body["store"], body["ignore_eos"]) == (3, False, True)
    assert (headers["X-Redraft-Domain"], headers["Authorization"]) == ("legal", "Bearer secret")
    assert "secret" not in repr(endpoint)


def test_another_server_is_asked_by_text_and_its_tokens_are_spread(url: str) -> None:
    endpoint = find_endpoint(url, ours=False, chat=True)
    assert endpoint is not None
    answer = endpoint.send(Ask(0, (1,), 8, text="hello"), time.perf_counter())
    assert (answer.text, answer.ids) == ("one two three", ())
    assert [tokens for _, tokens in answer.chunks] == [2, 3]
    _, body, headers = Handler.seen[0]
    assert body["model"] == "small"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert not {"ignore_eos", "return_token_ids", "num_speculative_tokens"} & set(body)
    assert "X-Redraft-Domain" not in headers


@pytest.mark.parametrize(("kind", "words"), [(429, "429"), (1, "without [DONE]"), (2, "not finite")])
def test_faults_become_errors(url: str, kind: int, words: str) -> None:
    answer = Endpoint(url, "toy").send(Ask(0, (kind,), 4), time.perf_counter())
    assert words in str(answer.error)


def test_no_server(url: str) -> None:
    away = "http://127.0.0.1:9"
    assert "refused" in str(Endpoint(away, "toy").send(Ask(0, (0,), 4), time.perf_counter()).error)
    assert find_endpoint(away) is None
    assert find_endpoint(url) is not None


def test_a_closed_loop_sends_each_request_once_and_never_more_at_a_time(url: str) -> None:
    asks = [Ask(index, (0, index), 6) for index in range(12)]
    block = closed_loop(Endpoint(url, "toy").send, asks, 3)
    assert [answer.index for answer in block.answers] == list(range(12))
    assert sorted(body["prompt"][1] for _, body, _ in Handler.seen) == list(range(12))
    assert 1 < Handler.most <= 3
    assert block.tokens == 72


def test_an_open_loop_sends_when_requests_are_due(url: str) -> None:
    """All are due at once, so they run together, however slow the server is."""
    asks = [Ask(index, (0, index), 6) for index in range(6)]
    block = open_loop(Endpoint(url, "toy").send, asks, [0.0] * 6)
    assert len({answer.index for answer in block.answers}) == 6
    assert Handler.most > 3


def test_times_count_from_when_a_request_was_due(url: str) -> None:
    answer = Endpoint(url, "toy").send(Ask(0, (0,), 6), time.perf_counter() - 100)
    assert answer.first_token is not None
    assert answer.first_token > 100
    assert answer.chunk_gaps[0] < 50
