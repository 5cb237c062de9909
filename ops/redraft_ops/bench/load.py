"""One streamed request to a server, timed at the client chunk by chunk. Standard library only."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from redraft_ops.bench.answers import Answer, Ask, spread
from redraft_ops.connections import connect

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Endpoint:
    """A server to ask. `ours` understands token ids, domains and our extra fields."""

    url: str
    model: str
    ours: bool = True
    chat: bool = False
    """Whether a server that is not ours gets the text as a chat message."""
    key: str | None = field(default=None, repr=False)

    def send(self, ask: Ask, due: float, extra: Mapping[str, Any] | None = None) -> Answer:
        """Stream one answer. `due` is the clock's reading (`time.perf_counter`) that times count from.

        Never raises for what the server or the network does: `error` tells.
        """
        path, body = self._request(ask)
        try:
            return self._stream(ask, path, {**body, **(extra or {})}, due)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            return Answer(ask.index, error=f"{type(error).__name__}: {error}")

    def _request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if self.ours:
            return "/v1/completions", {**body, "prompt": list(ask.ids), "return_token_ids": True}
        if self.chat:
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": ask.text}]}
        return "/v1/completions", {**body, "prompt": ask.text}

    def _headers(self, ask: Ask) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if self.ours and ask.domain:
            headers["X-Redraft-Domain"] = ask.domain
        return headers

    def _stream(self, ask: Ask, path: str, body: Mapping[str, Any], due: float) -> Answer:
        connection = connect(self.url, TIMEOUT_SECONDS)
        try:
            connection.request("POST", path, json.dumps(body), self._headers(ask))
            response = connection.getresponse()
            if response.status != 200:
                reason = response.read(500).decode(errors="replace")
                return Answer(ask.index, error=f"{response.status}: {reason}")
            return _collect(ask, events(response), due)
        finally:
            connection.close()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[float, dict[str, Any]]]:
    """(clock, data) of each server-sent event up to [DONE]; a stream that breaks off raises HTTPException."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        arrived, payload = time.perf_counter(), line[len(b"data:") :].strip()
        if payload == b"[DONE]":
            return
        yield arrived, json.loads(payload)
    raise http.client.HTTPException("the stream ended without [DONE]")


def _collect(ask: Ask, found: Iterator[tuple[float, dict[str, Any]]], due: float) -> Answer:
    texts: list[str] = []
    ids: list[int] = []
    times: list[float] = []
    counts: list[int] = []
    usage: dict[str, Any] = {}
    counted: dict[str, Any] = {}
    for clock, event in found:
        if "error" in event:
            return Answer(ask.index, error=str(event["error"]))
        usage = event.get("usage") or usage
        counted = (event.get("metrics") or {}).get("speculative_decoding") or counted
        for choice in event.get("choices") or ():
            text, tokens = _piece(choice)
            texts.append(text)
            ids.extend(tokens)
            if text or tokens:
                times.append(clock - due)
                counts.append(len(tokens))
    total = int(usage.get("completion_tokens") or len(times))
    chunks = tuple(zip(times, counts, strict=True)) if any(counts) else spread(total, times)
    return Answer(
        index=ask.index,
        ids=tuple(ids),
        text="".join(texts),
        chunks=tuple(chunk for chunk in chunks if chunk[1]),
        seconds=time.perf_counter() - due,
        rounds=_rounds(counted, total),
        tested=int(counted.get("num_tested_tokens") or 0),
        accepted=int(counted.get("num_accepted_draft_tokens") or 0),
    )


def _rounds(counted: Mapping[str, Any], tokens: int) -> int:
    """Plain rounds included: the histogram that vLLM tells leaves them out, its mean length does not."""
    length = counted.get("mean_acceptance_length")
    return round(tokens / length) if length else 0


def _piece(choice: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Text and token ids of one chunk; a server that tells no ids gives none."""
    text = choice["text"] if "text" in choice else (choice.get("delta") or {}).get("content")
    return text or "", list(choice.get("token_ids") or ())
