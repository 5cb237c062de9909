"""The demo's client against a small server: streams are timed, faults become errors, nothing raises."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from redraft_ops.demo.client import Client
from redraft_ops.demo.traffic import Prompts, run_all, running_streams

SPECULATIVE = {
    "num_spec_steps": 2,
    "num_draft_tokens": 6,
    "num_tested_tokens": 4,
    "num_accepted_draft_tokens": 3,
    "mean_acceptance_length": 2.5,
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by what the prompt says."""

    seen: ClassVar[list[tuple[dict[str, Any], str | None]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((body, self.headers["X-Redraft-Domain"]))
        prompt = body["messages"][0]["content"]
        if prompt == "refused":
            self.send_error(429)
            return
        self.send_response(200)
        self.end_headers()
        self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        self.event({"choices": [{"index": 0, "delta": {"content": "one "}}]})
        if prompt == "broken":
            return
        if prompt == "error":
            self.event({"error": {"message": "the target is not finite"}})
        time.sleep(0.05)
        self.event({"choices": [{"index": 0, "delta": {"content": "two"}, "finish_reason": "stop"}]})
        usage = {"completion_tokens": 5}
        self.event({"choices": [], "usage": usage, "metrics": {"speculative_decoding": SPECULATIVE}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def client() -> Iterator[Client]:
    Handler.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Client(f"http://127.0.0.1:{server.server_address[1]}", "m", "d", chat=True)
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_stream_is_collected_and_timed(client: Client) -> None:
    answer = client.ask("hello", speculate=False, store=False, temperature=0.0)
    assert (answer.text, answer.tokens, answer.error) == ("one two", 5, None)
    assert (answer.rounds, answer.proposed, answer.tested, answer.accepted) == (2, 6, 4, 3)
    ((begin, end),) = answer.gaps
    assert 0.04 < end - begin < 2
    body, domain = Handler.seen[0]
    assert domain == "d"
    assert (body["num_speculative_tokens"], body["store"], body["temperature"]) == (0, False, 0.0)


@pytest.mark.parametrize(
    ("prompt", "words"), [("refused", "429"), ("broken", "without [DONE]"), ("error", "not finite")]
)
def test_faults_become_errors(client: Client, prompt: str, words: str) -> None:
    error = client.ask(prompt).error
    assert error is not None
    assert words in error


def test_no_server_is_an_error() -> None:
    error = Client("http://127.0.0.1:9", "m", "d", chat=True).ask("hello").error
    assert error is not None
    assert "refused" in error


def test_each_prompt_is_asked_once(client: Client) -> None:
    prompts = [f"p{i}" for i in range(20)]
    answers = run_all(client, prompts, 4, lambda _: None)
    assert sorted(answer.prompt for answer in answers) == sorted(prompts)


def test_streams_run_until_they_are_no_longer_wanted(client: Client) -> None:
    spare = Prompts([f"p{i}" for i in range(1000)])
    with running_streams(client, spare, 3, lambda _: None) as answers:
        while len(Handler.seen) < 9:
            time.sleep(0.01)
    assert len(answers) == len(Handler.seen) < 1000
    assert len({answer.prompt for answer in answers}) == len(answers)
