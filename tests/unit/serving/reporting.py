"""A scripted engine that reports a policy and its memory, and what the faces tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from fastapi import FastAPI
from redraft_serving.engine.interface import DraftStatistics, EngineStatistics, MemoryReport
from redraft_serving.policy.types import PolicyReport, Setting
from transformers import PreTrainedTokenizerFast

from .scripted import ScriptedEngine, application

Serve = Callable[[FastAPI], str]
Serve = Callable[[FastAPI], str]
REPORT = PolicyReport(
    setting="auto",
    state="speculating",
    reason="proposing 3 tokens gives 1.62 times the tokens/s of plain decoding",
    num_speculative_tokens=3,
    proposer="draft",
    acceptance_by_position={"draft": (0.8, 0.7, 0.5), "ngram": (0.25,)},
    draft_step_seconds=0.004,
    verify_seconds=0.032,
    plain_seconds=0.029,
    rest_seconds=0.001,
    break_even_acceptance=0.31,
    modelled_gain=1.62,
    measured_gain=1.58,
    switches=2,
    probes=7,
    baselines=11,
)
FRESH = PolicyReport("auto", "off", "nothing is measured yet", 0, None)
MEMORY = MemoryReport(500, 30, 8, 90, 12, 16, 256)


@dataclass
class ReportingEngine(ScriptedEngine):
    """A scripted engine with a policy's report for domain `law`, and settings that stay."""

    report: PolicyReport = REPORT
    settings: dict[str, Setting | None] = field(default_factory=dict)
    memory: MemoryReport = MEMORY
    cached: int = 64

    def configure(self, domain: str, num_speculative_tokens: Setting | None) -> None:
        self.settings[domain] = num_speculative_tokens

    def statistics(self) -> EngineStatistics:
        setting = self.settings.get("law")
        report = replace(self.report, setting="auto" if setting is None else setting)
        draft = DraftStatistics(
            domain="law",
            version=4,
            rounds=9,
            proposed=27,
            tested=20,
            accepted=15,
            emitted=24,
            accepted_per_position=(8, 5, 2),
            tested_per_position=(9, 7, 4),
            checksum=None,
            adapter=None,
            num_speculative_tokens=report.num_speculative_tokens,
            state=report.state,
            policy=report,
        )
        return replace(
            super().statistics(),
            prompt_tokens=100,
            cached_prompt_tokens=self.cached,
            seconds={"draft": 1.5, "verify": 6.0, "prefill": 2.0, "rest": 0.5, "idle": 40.0},
            drafts=(draft,),
            memory=self.memory,
        )


@contextmanager
def law_client(
    engine: ReportingEngine, tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    """Of an application that has met domain `law` beside `default`."""
    app = application(engine, tokenizer)
    app.state.context.domains.resolve("law")
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        yield made


def card(client: httpx.Client, domain: str = "law") -> dict[str, Any]:
    cards = client.get("/v1/drafts").json()["data"]
    return next(one for one in cards if one["domain"] == domain)
