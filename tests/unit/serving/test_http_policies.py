"""What each answer says of the policy: what was chosen for its domain, and why."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.engine.interface import EngineStatistics
from redraft_serving.http.drafts import policy_card
from redraft_serving.http.policies import Policies
from transformers import PreTrainedTokenizerFast

from .reporting import REPORT, ReportingEngine, card
from .scripted import TWO_WORDS, application

Serve = Callable[[FastAPI], str]


class SlowEngine(ReportingEngine):
    """Takes 20 ms to tell its statistics."""

    looks = 0

    def statistics(self) -> EngineStatistics:
        self.looks += 1
        time.sleep(0.02)
        return super().statistics()


@pytest.fixture
def client(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> Iterator[httpx.Client]:
    app = application(ReportingEngine(TWO_WORDS), word_tokenizer)
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        yield made


def answered(client: httpx.Client, domain: str, stream: bool) -> Any:
    """`policy` in the last part of an answer."""
    body: dict[str, Any] = {"prompt": "a", "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    text = client.post("/v1/completions", json=body, headers={"X-Redraft-Domain": domain}).text
    last = text.split("\n\n")[-3].removeprefix("data: ") if stream else text
    return json.loads(last)["metrics"]["speculative_decoding"]["policy"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_says_what_was_chosen_and_why(client: httpx.Client, stream: bool) -> None:
    assert answered(client, "law", stream) == card(client)["policy"] == policy_card(REPORT)
    assert answered(client, "default", stream) is None


def test_a_snapshot_that_took_long_is_kept_for_long() -> None:
    """20 ms are a hundredth of two seconds; a domain that is not in it is looked for at once."""
    engine = SlowEngine()
    policies = Policies(engine)
    assert [policies.card("law") for _ in range(3)] == [policy_card(REPORT)] * 3
    assert engine.looks == 1
    assert policies.card("new") is None
    assert engine.looks == 2


def test_without_a_share_every_answer_would_wait() -> None:
    engine = SlowEngine()
    policies = Policies(engine, share=math.inf)
    assert [policies.card("law") for _ in range(3)] == [policy_card(REPORT)] * 3
    assert engine.looks == 3
