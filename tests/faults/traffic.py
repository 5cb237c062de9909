"""Continuous traffic with known answers: greedy requests whose text must be the target's own.

The oracle is the target alone, decoded by the model library's own greedy search, computed once.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

MAX_TOKENS = 16
PROMPTS = 400
PROMPT_WORDS = 4
CLIENT_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
FAILOVER_SECONDS = 60.0


def oracle(target: Path, seed: int = 0) -> dict[str, str]:
    """Prompt -> the target's greedy text of `MAX_TOKENS` tokens."""
    import torch
    from redraft_models.toy import LEARN_WORDS
    from transformers import AutoModelForCausalLM, AutoTokenizer

    generator = random.Random(seed)
    prompts = list({" ".join(generator.choices(LEARN_WORDS, k=PROMPT_WORDS)): None for _ in range(PROMPTS)})
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    ids = torch.tensor([tokenizer(prompt)["input_ids"] for prompt in prompts])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False
        )
    texts = tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
    return dict(zip(prompts, texts, strict=True))


@dataclass(frozen=True)
class Record:
    """One request and how it ended; `id` is the answer's, which the sample carries."""

    prompt: str
    status: int
    text: str
    started: float
    seconds: float
    id: str = ""
    version: str = ""
    domain: str = ""
    moved: int = 0
    """Workers that were gone when it asked them; another one then answered it."""


@dataclass
class Traffic:
    """`with Traffic(urls, answers):` keeps `threads` clients asking until it is left.

    Of several `urls` a client asks one, and the next with the same X-Request-Id where that one is gone, as
    a load balancer does.
    """

    urls: Sequence[str]
    answers: Mapping[str, str]
    threads: int = 2
    pause_seconds: float = 0.2
    domain: str = "default"
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._clients = [
            threading.Thread(target=self._ask_on, args=(number,), daemon=True)
            for number in range(self.threads)
        ]

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No further requests; waits for those that run."""
        self._stop.set()
        for client in self._clients:
            if client.is_alive():
                client.join(CLIENT_TIMEOUT.read or 60)

    def failures(self) -> list[Record]:
        """Requests that did not get 200."""
        return [record for record in list(self.records) if record.status != 200]

    def wrong(self) -> list[Record]:
        """Requests whose text is not the target's."""
        return [r for r in list(self.records) if r.status == 200 and r.text != self.answers[r.prompt]]

    def since(self, moment: float) -> list[Record]:
        """Requests that were asked after a moment of `time.monotonic()`."""
        return [record for record in list(self.records) if record.started >= moment]

    def _ask_on(self, thread: int) -> None:
        generator = random.Random(thread)
        prompts = list(self.answers)
        with httpx.Client(timeout=CLIENT_TIMEOUT) as http:
            while not self._stop.is_set():
                self.records.append(self._ask(http, generator.choice(prompts)))
                self._stop.wait(self.pause_seconds)

    def _ask(self, http: httpx.Client, prompt: str) -> Record:
        """One request, moved on to the next worker while the asked one is gone."""
        number = next(self._numbers)
        headers = {"X-Request-Id": f"{id(self)}-{number}", "X-Redraft-Domain": self.domain}
        body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
        began = time.monotonic()
        for moved in itertools.count():
            url = self.urls[(number + moved) % len(self.urls)]
            try:
                answer = http.post(f"{url}/v1/completions", json=body, headers=headers)
            except httpx.TransportError as error:
                if len(self.urls) > 1 and time.monotonic() - began < FAILOVER_SECONDS:
                    continue
                return Record(prompt, 0, repr(error), began, time.monotonic() - began, moved=moved)
            return _record(prompt, answer, began, moved, self.domain)
        raise AssertionError("unreachable")


def _record(prompt: str, answer: httpx.Response, began: float, moved: int, domain: str) -> Record:
    seconds = time.monotonic() - began
    if answer.status_code != 200:
        return Record(prompt, answer.status_code, answer.text, began, seconds, domain=domain)
    found: dict[str, Any] = answer.json()
    version = str(found["metrics"]["speculative_decoding"]["draft_version"])
    text = found["choices"][0]["text"]
    return Record(prompt, 200, text, began, seconds, found["id"], version, domain, moved)
