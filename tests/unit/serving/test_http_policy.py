"""What the faces tell of the policy and of memory, and the call that changes how far a domain speculates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from redraft_serving.engine.interface import DraftStatistics, EngineStatistics, MemoryReport
from redraft_serving.policy.types import PolicyReport, Setting
from transformers import PreTrainedTokenizerFast

from .test_http import ScriptedEngine, application

Serve = Callable[[FastAPI], str]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

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


@pytest.fixture
def engine() -> ReportingEngine:
    return ReportingEngine()


@pytest.fixture
def client(
    engine: ReportingEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> Iterator[httpx.Client]:
    app = application(engine, word_tokenizer)
    app.state.context.domains.resolve("law")
    with httpx.Client(base_url=serve(app), timeout=10) as made:
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


def card(client: httpx.Client, domain: str = "law") -> dict[str, Any]:
    cards = client.get("/v1/drafts").json()["data"]
    return next(one for one in cards if one["domain"] == domain)


def test_the_card_says_what_was_chosen_and_why(client: httpx.Client) -> None:
    assert card(client)["policy"] == {
        "setting": "auto",
        "state": "speculating",
        "reason": REPORT.reason,
        "num_speculative_tokens": 3,
        "proposer": "draft",
        "acceptance_by_position": {"draft": [0.8, 0.7, 0.5], "ngram": [0.25]},
        "draft_step_ms": 4.0,
        "verify_ms": 32.0,
        "plain_ms": 29.0,
        "rest_ms": 1.0,
        "break_even_acceptance": 0.31,
        "modelled_gain": 1.62,
        "measured_gain": 1.58,
        "switches": 2,
        "probes": 7,
        "baselines": 11,
    }
    assert card(client, "default")["policy"] is None


def test_a_policy_without_data_is_null_not_zero(client: httpx.Client, engine: ReportingEngine) -> None:
    engine.report = FRESH
    policy = card(client)["policy"]
    empty = {name for name, value in policy.items() if value is None}
    assert empty >= {"draft_step_ms", "verify_ms", "break_even_acceptance", "modelled_gain", "measured_gain"}
    assert policy["acceptance_by_position"] == {}


def change(client: httpx.Client, domain: str, body: Any) -> httpx.Response:
    return client.post(f"/v1/drafts/{domain}/speculation", json=body)


@pytest.mark.parametrize("setting", ["auto", 0, 3, 8, None])
def test_a_setting_changes_while_serving(
    client: httpx.Client, engine: ReportingEngine, setting: Setting | None
) -> None:
    answer = change(client, "law", {"num_speculative_tokens": setting})
    assert answer.status_code == 200
    assert engine.settings == {"law": setting}
    assert answer.json() == card(client)
    assert answer.json()["policy"]["setting"] == ("auto" if setting is None else setting)
    assert change(client, "default", {"num_speculative_tokens": setting}).json()["domain"] == "default"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "required"),
        ({"num_speculative_tokens": "many"}, "'many'"),
        ({"num_speculative_tokens": "3"}, "'3'"),
        ({"num_speculative_tokens": -1}, "-1"),
        ({"num_speculative_tokens": 2.5}, "2.5"),
        ({"num_speculative_tokens": True}, "True"),
        ({"num_speculative_tokens": [3]}, "[3]"),
        ({"num_speculative_tokens": 9}, "at most 8"),
        ({"num_speculative_tokens": 3, "domain": "law"}, "not permitted"),
        ([], "JSON object"),
        (None, "JSON object"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(
    client: httpx.Client, engine: ReportingEngine, body: Any, words: str
) -> None:
    answer = change(client, "law", body)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert words in message
    assert message.count("\n") == 0
    assert engine.settings == {}


def test_an_unknown_domain_is_404_and_stays_unknown(client: httpx.Client, engine: ReportingEngine) -> None:
    for domain in ("medicine", "a b", "x" * 300):
        answer = change(client, domain, {"num_speculative_tokens": 0})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "domain_not_found", "domain")
        assert "default, law" in error["message"]
    assert engine.settings == {}
    assert len(client.get("/v1/drafts").json()["data"]) == 2


def test_a_dead_engine_is_503(client: httpx.Client, engine: ReportingEngine) -> None:
    engine.alive = False
    assert change(client, "law", {"num_speculative_tokens": 0}).status_code == 503


def test_the_key_guards_the_setting(
    engine: ReportingEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Serve
) -> None:
    """The clients' key is not enough: it needs the admin's."""
    app = application(engine, word_tokenizer, api_key="correct", admin_key="operator")
    with httpx.Client(base_url=serve(app)) as client:
        body = {"num_speculative_tokens": 0}
        for key, status in (("none", 401), ("correct", 403)):
            client.headers["Authorization"] = f"Bearer {key}"
            assert change(client, "default", body).status_code == status
        assert engine.settings == {}
        client.headers["Authorization"] = "Bearer operator"
        assert change(client, "default", body).status_code == 200
        assert client.get("/v1/drafts/default/speculation").status_code == 405
