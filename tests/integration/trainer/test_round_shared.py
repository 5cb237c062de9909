"""Rounds of a domain whose champion serves another domain's traffic too, and rounds with a canary."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from redraft_models.toy_laws import learn_draft_rows, learn_rows
from redraft_queue.keys import samples as stream_key
from redraft_trainer import rounds
from redraft_trainer.gate import decide
from redraft_trainer.process import run_child
from redraft_trainer.reports import MeasureReport
from redraft_trainer.rounds import run_round
from redraft_trainer.sharing import other_reports, others_tag

from .conftest import DOMAIN, GATE, Bench, answers, runs

pytestmark = pytest.mark.integration

FAQ = "faq"


def shared(bench: Bench) -> Bench:
    return replace(bench, context=replace(bench.context, shared_drafts={FAQ: DOMAIN}))


def faq_traffic(bench: Bench, count: int, seed: int, rows: np.ndarray) -> None:
    bench.stream.append([replace(one, domain=FAQ) for one in answers(count, seed, bench.identity, rows)])


def test_a_domain_that_gains_too_is_told_of(bench: Bench) -> None:
    """Its newest held-out samples are measured in the round of the domain whose draft it takes."""
    bench.traffic(100, seed=0)
    faq_traffic(bench, 120, 5, learn_rows().numpy())
    result = shared(bench).run("r", max_steps=15)
    assert result.decision == "promoted"
    tags = bench.context.registry.version(DOMAIN, 1).tags
    told = json.loads(tags["other_domains"])[FAQ]
    assert told["verdict"] == "kept"
    assert told["candidate"] - told["champion"] == pytest.approx(told["gain"], abs=2e-4)
    assert told["gain"] > 0.3
    metrics = runs(bench)[0].data.metrics
    assert metrics["other.faq.acceptance_rate"] == pytest.approx(told["candidate"], abs=1e-3)
    assert bench.context.registry.versions(FAQ) == []
    assert bench.context.client.xlen(stream_key(FAQ)) == 120


def test_a_candidate_that_hurts_the_sharing_domain_is_rejected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sharing domain's answers follow what the base draft knows; the candidate unlearns it. Without the
    guard the very same measurements promote.
    """
    results: list[dict[str, Any]] = []

    def kept(*args: Any, **kwargs: Any) -> dict[str, Any]:
        results.append(run_child(*args, **kwargs))
        return results[0]

    monkeypatch.setattr(rounds, "run_child", kept)
    bench.traffic(100, seed=0)
    faq_traffic(bench, 120, 5, learn_draft_rows(learn_rows()).numpy())
    result = shared(bench).run("r", max_steps=15)
    assert result.decision == "rejected"
    assert "In the domain faq" in result.reason
    info = bench.context.registry.version(DOMAIN, 1)
    told = json.loads(info.tags["other_domains"])[FAQ]
    assert told["verdict"] == "lost"
    assert told["gain"] < -0.1
    assert info.validation_status == "rejected"
    assert bench.context.registry.champion(DOMAIN) is None

    own = [MeasureReport.from_dict(results[0][name]) for name in ("champion", "candidate")]
    others = other_reports(results[0])
    assert decide(own[0], own[1], GATE, others).decision == "rejected"
    assert decide(own[0], own[1], GATE).decision == "promoted"
    lenient = GATE.model_copy(update={"max_regression": 1.0})
    assert decide(own[0], own[1], lenient, others).decision == "promoted"
    # What is too little to tell anything doesn't reject, and says so.
    strict = GATE.model_copy(update={"min_heldout_tokens": 10_000})
    assert json.loads(others_tag(others, strict) or "")[FAQ]["verdict"] == "too few"


def test_an_approved_candidate_is_tried_first_and_rounds_wait_for_it(bench: Bench) -> None:
    """An approved candidate becomes challenger; no round runs until live traffic has decided."""
    registry = bench.context.registry
    trying = replace(bench, context=replace(bench.context, canary=True))
    bench.traffic(100, seed=0)
    first = trying.run("first", max_steps=10)
    assert (first.decision, first.version) == ("challenger", 1)
    assert registry.champion(DOMAIN) is None
    challenger = registry.running_canary(DOMAIN)
    assert challenger is not None
    assert challenger.version == 1
    # Found done when it is delivered again.
    assert trying.run("first") == first

    bench.traffic(100, seed=1)
    second = run_round(trying.context, DOMAIN, "second", force=True)
    assert second.decision == "skipped"
    assert "version 1" in second.reason
    assert not bench.context.work_dir("second").exists()

    registry.promote(DOMAIN, 1, canary=True)
    assert trying.run("first").decision == "promoted"
    third = trying.run("third", max_steps=4)
    assert third.version == 2
    assert third.decision in ("challenger", "rejected")
    assert registry.champion(DOMAIN).version == 1  # type: ignore[union-attr]


def test_a_candidate_that_nobody_tries_stops_the_rounds_only_for_a_while(bench: Bench) -> None:
    """No worker serves the domain, as with samples of another engine."""
    registry = bench.context.registry
    trying = replace(bench, context=replace(bench.context, canary=True, canary_seconds=60.0))
    bench.traffic(100, seed=0)
    assert trying.run("first", max_steps=10).decision == "challenger"
    bench.traffic(100, seed=1)
    day_ago = int((time.time() - 86_400) * 1000)
    for started, decision in ((int(time.time() * 1000), "skipped"), (day_ago, "challenger")):
        registry.set_tags(DOMAIN, 1, {"canary_started_ms": started})
        assert trying.run(f"after {started}".replace(" ", "-"), max_steps=10).decision in (
            decision,
            "rejected",
        )
        assert (registry.version(DOMAIN, 1).tags["canary"] == "running") == (decision == "skipped")
    tags = registry.version(DOMAIN, 1).tags
    assert (tags["canary"], tags["validation_status"]) == ("undecided", "rejected")
    assert tags["decision_reason"].startswith("No serving worker decided within 60 seconds")
    assert registry.newest(DOMAIN).version == 2  # type: ignore[union-attr]
