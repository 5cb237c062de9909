"""Whole training rounds: what they decide, leave behind, refuse and skip."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redraft_models.registry import Registry
from redraft_queue.keys import samples as stream_key
from redraft_trainer.errors import ChildFailed, Diverged
from redraft_trainer.rounds import run_round

from .conftest import DOMAIN, QUICK, Bench, runs

pytestmark = pytest.mark.integration


def test_a_round_promotes_and_the_next_one_goes_on_from_there(bench: Bench) -> None:
    registry = bench.context.registry
    ids = bench.traffic(120, seed=0)
    events = bench.context.client.pubsub(ignore_subscribe_messages=True)
    events.subscribe("redraft:events")
    first = bench.run("round-1")
    assert (first.decision, first.version) == ("promoted", 1)
    assert first.acceptance_rate is not None
    assert first.acceptance_rate > 0.8
    assert first.champion_acceptance_rate == pytest.approx(0.207, abs=0.02)
    assert first.gain_ci_low is not None
    assert first.gain_ci_low > 0.5
    champion = registry.champion(DOMAIN)
    assert champion is not None
    assert champion.version == 1
    tags = champion.tags
    assert (tags["validation_status"], tags["precision_effective"]) == ("approved", "no")
    assert (tags["stream_first_id"], tags["stream_last_id"]) == (ids[0], ids[-1])
    assert float(tags["self_acceptance"]) == pytest.approx(1.0, abs=1e-2)
    assert [json.loads(message["data"]) for message in _messages(events)] == [
        {"domain": DOMAIN, "version": 1}
    ]
    assert not bench.context.work_dir("round-1").exists()

    # The same round again is found done; a new one without new traffic has nothing to do.
    assert bench.run("round-1") == first
    assert bench.run("round-2").decision == "skipped"

    more = bench.traffic(120, seed=1)
    third = bench.run("round-3", max_steps=10)
    assert third.version == 2
    assert third.champion_acceptance_rate is not None
    assert third.champion_acceptance_rate > 0.8
    second = registry.version(DOMAIN, 2)
    assert (second.tags["parent_version"], second.tags["started_from"]) == ("1", "1")
    assert second.tags["stream_first_id"] == more[0]
    provenance = json.loads(
        (registry.download(DOMAIN, 2, bench.context.data_dir) / "provenance.json").read_text()
    )
    assert str(bench.context.data_dir.parent) not in json.dumps(provenance)


def _messages(events: Any) -> list[dict[str, Any]]:
    # The subscription itself is answered with None.
    found = [events.get_message(timeout=0.2) for _ in range(4)]
    return [message for message in found if message is not None]


def test_two_rounds_on_the_same_range_decide_the_same(bench: Bench, tmp_path: Path) -> None:
    bench.traffic(100, seed=0)
    first = bench.run("a", max_steps=10)
    other = Registry(f"sqlite:///{tmp_path / 'second.db'}", artifact_root=tmp_path / "second")
    again = run_round(
        replace(bench.context, registry=other, trainer=QUICK.model_copy(update={"max_steps": 10})),
        DOMAIN,
        "b",
    )
    assert again == first
    assert other.version(DOMAIN, 1).tags["sha256"] == bench.context.registry.version(DOMAIN, 1).tags["sha256"]


def test_a_mad_learning_rate_fails_and_registers_nothing(bench: Bench) -> None:
    """The samples are there for a later round, which removes what the failed one left."""
    bench.traffic(100, seed=0)
    with pytest.raises(Diverged, match="learning_rate"):
        bench.run("mad", learning_rate=1e9)
    assert bench.context.registry.versions(DOMAIN) == []
    assert bench.context.registry.champion(DOMAIN) is None
    (run,) = runs(bench)
    assert run.info.status == "FAILED"
    assert bench.run("sane", max_steps=10).decision == "promoted"
    assert not bench.context.work_dir("mad").exists()


def test_precision_is_one_per_process_and_told(bench: Bench) -> None:
    """Rounds of another precision in one worker; fp16, which a CPU can't scale, runs in full
    precision.
    """
    for seed, (wanted, effective) in enumerate([("no", "no"), ("bf16", "bf16"), ("fp16", "no")]):
        bench.traffic(80, seed=seed)
        result = bench.run(f"r{seed}", mixed_precision=wanted, max_steps=4)
        assert result.version == seed + 1
        info = bench.context.registry.version(DOMAIN, seed + 1)
        assert info.tags["precision_effective"] == effective
    found = runs(bench)
    assert {run.data.params["precision_effective"] for run in found} == {"no", "bf16"}
    assert all(math.isfinite(run.data.metrics["loss"]) for run in found)


def test_entries_that_can_not_be_used_are_set_aside(bench: Bench) -> None:
    """Another tokenizer's ids and junk go to the dead letters; the rest is learned."""
    bench.traffic(80, seed=0)
    bench.traffic(5, seed=1, tokenizer_fingerprint="another")
    bench.context.client.xadd(stream_key(DOMAIN), {"sample": b"junk"})
    assert bench.run("r", max_steps=4).version == 1
    letters = bench.stream.dead(DOMAIN)
    assert len(letters) == 6
    assert sum("tokenizer" in letter.reason for letter in letters) == 5
    assert runs(bench)[0].data.params["dead_letters"] == "6"


def test_a_round_without_enough_is_skipped_and_loses_nothing(bench: Bench) -> None:
    assert bench.run("empty").decision == "skipped"
    bench.traffic(20, seed=0)
    few = bench.run("few")
    assert few.decision == "skipped"
    assert "min_new_tokens" in few.reason
    forced = run_round(bench.context, DOMAIN, "forced", force=True)
    assert "held-out requests" in forced.reason
    bench.traffic(80, seed=1)
    assert bench.run("enough", max_steps=4).version == 1
    assert runs(bench)[0].data.params["new_entries"] == "100"


def test_a_training_process_that_can_not_work_tells_why(bench: Bench) -> None:
    """The launcher's own traceback is no reason."""
    bench.traffic(80, seed=0)
    broken = bench.context.models.model_copy(update={"draft": "nowhere/at-all"})
    with pytest.raises(ChildFailed, match="nowhere"):
        run_round(replace(bench.context, models=broken), DOMAIN, "r")
    assert bench.context.registry.versions(DOMAIN) == []
