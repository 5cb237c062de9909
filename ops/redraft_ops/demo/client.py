"""One streamed request to a serving worker, timed at the client. Standard library only."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redraft_ops.connections import connect, get_json

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """What came back for one prompt. `arrivals` are the clock's readings at each chunk that carried text
    or tokens.
    """

    prompt: str
    text: str = ""
    tokens: int = 0
    arrivals: tuple[float, ...] = ()
    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    mean_acceptance_length: float | None = None
    error: str | None = None

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """(begin, end) of the time between each two chunks."""
        return list(zip(self.arrivals, self.arrivals[1:], strict=False))


@dataclass(frozen=True)
class Client:
    """Talks to one serving worker at `url`. `path` chooses chat or plain completions."""

    url: str
    model: str
    domain: str
    chat: bool

    def ask(self, prompt: str, *, speculate: bool = True, store: bool = True, **sampling: Any) -> Answer:
        """Stream one answer. Never raises for what the server or the network does: `error` tells."""
        body: dict[str, Any] = {"model": self.model, "stream": True, "store": store, **sampling}
        body["stream_options"] = {"include_usage": True}
        if not speculate:
            body["num_speculative_tokens"] = 0
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        try:
            return self._stream(prompt, "/v1/chat/completions" if self.chat else "/v1/completions", body)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            return Answer(prompt, error=f"{type(error).__name__}: {error}")

    def get(self, path: str) -> Any:
        """JSON of a GET, or None for an empty body. Raises OSError or HTTPException when there is no 200."""
        return get_json(self.url, path, 5.0)

    def _stream(self, prompt: str, path: str, body: Mapping[str, Any]) -> Answer:
        connection = connect(self.url, TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "X-Redraft-Domain": self.domain}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                return Answer(
                    prompt, error=f"{response.status}: {response.read(500).decode(errors='replace')}"
                )
            return _collect(prompt, _events(response))
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[float, dict[str, Any]]]:
    """(clock, data) of each server-sent event up to [DONE]; a stream that breaks off raises HTTPException."""
    for line in response:
        if not line.startswith(b"data: "):
            continue
        payload = line[len(b"data: ") :].strip()
        if payload == b"[DONE]":
            return
        yield time.monotonic(), json.loads(payload)
    raise http.client.HTTPException("the stream ended without [DONE]")


def _collect(prompt: str, events: Iterator[tuple[float, dict[str, Any]]]) -> Answer:
    text: list[str] = []
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    for clock, event in events:
        if "error" in event:
            return Answer(prompt, error=str(event["error"]))
        usage = event.get("usage") or usage
        metrics = (event.get("metrics") or {}).get("speculative_decoding") or metrics
        for choice in event.get("choices", ()):
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            if piece:
                text.append(piece)
                arrivals.append(clock)
    return Answer(
        prompt=prompt,
        text="".join(text),
        tokens=int(usage.get("completion_tokens", 0)),
        arrivals=tuple(arrivals),
        rounds=int(metrics.get("num_spec_steps") or 0),
        proposed=int(metrics.get("num_draft_tokens") or 0),
        tested=int(metrics.get("num_tested_tokens") or 0),
        accepted=int(metrics.get("num_accepted_draft_tokens") or 0),
        mean_acceptance_length=metrics.get("mean_acceptance_length"),
    )
