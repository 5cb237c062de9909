"""An engine that plays a script, an application over it, and clients of that."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
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
from redraft_serving.http.served import ServedModel
from redraft_serving.policy.types import Setting
from redraft_serving.settings import ServingSettings
from transformers import PreTrainedTokenizerFast


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


def application(engine: ScriptedEngine, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> FastAPI:
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
    model = ServedModel("toy", tokenizer, len(tokenizer), 64, "target", "tokenizer", "draft")
    settings = {"max_n": 4, "max_body_bytes": 4096, **settings}
    return build_app(engine, model, ServingSettings(**settings), Domains("default", limit=3))


def official(client: httpx.Client) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0, timeout=10)


def complete(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "a", **body})


def chat(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], **body})
