"""Mixed traffic for the soak: streams, sampling, several choices, stop strings, cancelled requests, three
domains. Counts what was asked and what went wrong, and keeps the gaps between a stream's pieces.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

DOMAINS = ("default", "support", "faq")
KINDS = ("greedy", "sampled", "choices", "stop", "cancel")
STREAM_TOKENS, SHORT_TOKENS = 192, 32
PAUSE_SECONDS = 0.1
CANCEL_AFTER_PIECES = 3
STOP = " a0"


@dataclass
class Load:
    """Clients in threads; all that they saw."""

    url: str
    words: tuple[str, ...]
    streams: int = 2
    others: int = 2
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """(time.time() at its end, seconds) of each gap between two pieces of a stream."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(step, number), daemon=True)
            for number, step in enumerate([self._stream] * self.streams + [self._other] * self.others)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, when the running requests have ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _work(self, step: Callable[[httpx.Client, random.Random, int], None], seed: int) -> None:
        generator = random.Random(seed)
        with httpx.Client(base_url=self.url, timeout=60) as http:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                try:
                    step(http, generator, number)
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self.failures.append(repr(error))
                self._stop.wait(PAUSE_SECONDS)

    def _body(self, generator: random.Random, **more: Any) -> dict[str, Any]:
        return {"prompt": " ".join(generator.choices(self.words, k=8)), "temperature": 0, **more}

    def _stream(self, http: httpx.Client, generator: random.Random, number: int) -> None:
        """One long stream, its pieces timed."""
        body = self._body(generator, max_tokens=STREAM_TOKENS, stream=True)
        pieces = self._pieces(http, body, DOMAINS[number % len(DOMAINS)])
        before = None
        for moment in pieces:
            if before is not None:
                self.gaps.append((time.time(), moment - before))
            before = moment
        self.counts["stream"] += 1

    def _other(self, http: httpx.Client, generator: random.Random, number: int) -> None:
        """One request of the next kind, in the next domain."""
        kind, domain = KINDS[number % len(KINDS)], DOMAINS[number % len(DOMAINS)]
        special: dict[str, Any] = {
            "greedy": {},
            "sampled": {"temperature": 1.0, "top_p": 0.9, "seed": number},
            "choices": {"temperature": 0.8, "n": 3},
            "stop": {"stop": [STOP]},
            "cancel": {"stream": True, "max_tokens": STREAM_TOKENS},
        }[kind]
        body = self._body(generator, **{"max_tokens": SHORT_TOKENS, **special})
        if kind == "cancel":
            pieces = self._pieces(http, body, domain)
            for _ in itertools.islice(pieces, CANCEL_AFTER_PIECES):
                pass
            pieces.close()
        else:
            answer = http.post("/v1/completions", json=body, headers={"X-Redraft-Domain": domain})
            if answer.status_code != 200 or len(answer.json()["choices"]) != body.get("n", 1):
                self.failures.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        self.counts[kind] += 1

    def _pieces(self, http: httpx.Client, body: dict[str, Any], domain: str) -> Iterator[float]:
        """The moment of each piece of text of a stream."""
        headers = {"X-Redraft-Domain": domain}
        with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
                raise ValueError(f"{answer.status_code} {answer.text[:200]}")
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                if json.loads(line.removeprefix("data: "))["choices"][0]["text"]:
                    yield time.monotonic()
