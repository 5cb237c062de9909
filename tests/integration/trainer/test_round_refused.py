"""Rounds that change nothing: a candidate that is worse, a second delivery, a second round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from redraft_queue.errors import LockHeld
from redraft_trainer.rounds import run_round

from .conftest import DOMAIN, QUICK, Bench, runs

pytestmark = pytest.mark.integration


def test_a_candidate_that_lost_is_rejected_with_its_numbers(bench: Bench) -> None:
    """Its own loss fell, as that of any training; measured acceptance alone decides."""
    bench.traffic(100, seed=0)
    assert bench.run("good").decision == "promoted"
    bench.traffic(100, seed=1)
    result = bench.run("poor", start_from="base", max_steps=2)
    assert (result.decision, result.version) == ("rejected", 2)
    assert result.acceptance_rate is not None
    assert result.champion_acceptance_rate is not None
    assert result.acceptance_rate < 0.5 < result.champion_acceptance_rate
    registry = bench.context.registry
    tags = registry.version(DOMAIN, 2).tags
    assert tags["validation_status"] == "rejected"
    assert float(tags["acceptance_rate"]) == pytest.approx(result.acceptance_rate, abs=1e-4)
    assert f"{result.acceptance_rate:.4f} does not exceed the champion's" in tags["decision_reason"]
    champion = registry.champion(DOMAIN)
    assert champion is not None
    assert champion.version == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_second_delivery_and_a_second_round_find_the_domain_taken(bench: Bench, device: str) -> None:
    """While a round trains: the same round again, then another one. Then nothing is left to train on.

    Only the training process has used the device: this one has torch loaded and may be forked.
    """
    used = torch.cuda.is_initialized()
    # A busy machine may let nobody beat for the seconds that a lock lasts in the other tests.
    patient = bench.context.queue.model_copy(update={"lock_ttl_seconds": 60.0})
    bench = replace(bench, context=replace(bench.context, queue=patient))
    bench.traffic(80, seed=0)
    holders: list[str] = []

    def deliver_again(event: Mapping[str, Any]) -> None:
        if event["stage"] == "train" and not holders:
            for round_id in ("r", "other"):
                with pytest.raises(LockHeld) as taken:
                    bench.run(round_id)
                holders.append(taken.value.holder)

    trainer = QUICK.model_copy(update={"max_steps": 4})
    models = bench.context.models.model_copy(update={"device": device})
    context = replace(bench.context, trainer=trainer, models=models)
    assert run_round(context, DOMAIN, "r", progress=deliver_again).version == 1
    assert holders == ["r", "r"]
    assert bench.run("other").decision == "skipped"
    assert len(bench.context.registry.versions(DOMAIN)) == len(runs(bench)) == 1
    assert torch.cuda.is_initialized() == used
