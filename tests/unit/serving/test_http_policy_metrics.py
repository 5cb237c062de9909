"""What /metrics tells of the policy, of time by phase and of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from redraft_serving.engine.interface import MemoryReport
from transformers import PreTrainedTokenizerFast

from .reporting import MEMORY, REPORT, ReportingEngine, card, law_client

Serve = Callable[[FastAPI], str]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def engine() -> ReportingEngine:
    return ReportingEngine()


@pytest.fixture
def client(
    engine: ReportingEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    with law_client(engine, word_tokenizer, serve) as made:
        yield made


def scrape(client: httpx.Client) -> Series:
    """Every sample of /metrics; labels of the model left out."""
    text = client.get("/metrics").text
    assert "nan" not in text.lower()
    return {
        (
            sample.name,
            tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name", "engine"))),
        ): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_domain(series: Series, domain: str) -> dict[str, float]:
    return {name: value for (name, labels), value in series.items() if labels == (("domain", domain),)}


def test_acceptance_and_gain_stand_side_by_side(client: httpx.Client) -> None:
    series = scrape(client)
    expected = {
        "redraft_speculation_state": 1,
        "redraft_num_speculative_tokens": 3,
        "redraft_acceptance_rate": 0.75,
        "redraft_break_even_acceptance": 0.31,
        "redraft_modelled_gain": 1.62,
        "redraft_measured_gain": 1.58,
        "redraft_draft_step_seconds": 0.004,
        "redraft_verify_seconds": 0.032,
        "redraft_plain_seconds": 0.029,
        "redraft_rest_seconds": 0.001,
        "redraft_policy_switches_total": 2,
        "redraft_policy_probes_total": 7,
        "redraft_policy_baselines_total": 11,
        "redraft_draft_version": 4,
        "redraft_rollbacks_total": 0,
    }
    assert of_domain(series, "law") == expected
    version = (("arm", "champion"), ("domain", "law"), ("version", "4"))
    assert series["redraft_draft_tested_tokens_total", version] == 20
    assert series["redraft_draft_accepted_tokens_total", version] == 15


def test_acceptance_by_position_of_every_proposer(client: httpx.Client) -> None:
    found = {
        (dict(labels)["proposer"], int(dict(labels)["position"])): value
        for (name, labels), value in scrape(client).items()
        if name == "redraft_acceptance_by_position"
    }
    assert found == {("draft", 0): 0.8, ("draft", 1): 0.7, ("draft", 2): 0.5, ("ngram", 0): 0.25}


def test_a_domain_without_data_has_a_state_but_no_rates(client: httpx.Client) -> None:
    """`default` has not been met by the engine yet."""
    found = of_domain(scrape(client), "default")
    assert found == {
        "redraft_speculation_state": 1,
        "redraft_num_speculative_tokens": 3,
        "redraft_draft_version": 0,
        "redraft_rollbacks_total": 0,
    }


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_numbers_that_are_none_are_absent(
    client: httpx.Client, engine: ReportingEngine, value: float | None
) -> None:
    """In the answer they are null; JSON has no NaN."""
    engine.report = replace(
        REPORT, measured_gain=value, verify_seconds=value, acceptance_by_position={"draft": (math.nan, 0.5)}
    )
    found = of_domain(scrape(client), "law")
    assert not {"redraft_measured_gain", "redraft_verify_seconds"} & found.keys()
    assert found["redraft_modelled_gain"] == 1.62
    policy = card(client)["policy"]
    assert (policy["measured_gain"], policy["verify_ms"]) == (None, None)
    assert policy["acceptance_by_position"] == {"draft": [None, 0.5]}


@pytest.mark.parametrize(
    ("state", "k", "value"), [("off", 0, 0), ("off", 3, 0), ("fixed", 3, 1), ("fixed", 0, 0)]
)
def test_state(client: httpx.Client, engine: ReportingEngine, state: Any, k: int, value: int) -> None:
    engine.report = replace(REPORT, state=state, num_speculative_tokens=k)
    assert of_domain(scrape(client), "law")["redraft_speculation_state"] == value


def test_time_by_phase_and_the_prefix_cache(client: httpx.Client, engine: ReportingEngine) -> None:
    series = scrape(client)
    seconds = {dict(k[1])["phase"]: v for k, v in series.items() if k[0] == "redraft_engine_seconds_total"}
    assert seconds == {"draft": 1.5, "verify": 6.0, "prefill": 2.0, "rest": 0.5, "idle": 40.0}
    assert series["vllm:prefix_cache_hits_total", ()] == series["vllm:prompt_tokens_cached_total", ()] == 64
    assert series["vllm:prefix_cache_queries_total", ()] == 100
    engine.memory, engine.cached = replace(MEMORY, prefix_cache_limit=0), 0
    assert scrape(client)["vllm:prefix_cache_queries_total", ()] == 0


def test_memory_by_part(client: httpx.Client, engine: ReportingEngine) -> None:
    series = scrape(client)
    parts = {dict(k[1])["part"]: v for k, v in series.items() if k[0] == "redraft_memory_bytes"}
    assert parts == {
        "target": 500,
        "draft": 30,
        "target_cache": 720,
        "draft_cache": 96,
        "prefix_cache": 16,
    }
    memory = client.get("/v1/drafts").json()["memory"]
    assert memory["total_bytes"] == sum(parts.values())
    assert memory["caches_bytes"] == 8 * (90 + 12)
    assert memory["draft_costs_slots"] == pytest.approx((30 + 96) / 90, abs=1e-4)
    assert series["redraft_slots", ()] == 8
    engine.memory = MemoryReport()
    assert not [key for key in scrape(client) if "memory" in key[0] or "slot" in key[0]]
    assert client.get("/v1/drafts").json()["memory"]["draft_costs_slots"] is None
