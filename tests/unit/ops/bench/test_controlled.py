"""A chosen acceptance is what comes out, the text stays the target's, and the real draft does its work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from redraft_models.loading import ModelPair
from redraft_models.quiet import quiet_transformers
from redraft_ops.bench.acceptance import Controlled, lanes_of, rows_of
from redraft_ops.bench.answers import Ask
from redraft_ops.bench.controlled import KnownAnswers
from redraft_ops.bench.plan import BenchPlan, configurations
from redraft_serving.settings import ServingSettings

MakeAsks = Callable[..., list[Ask]]
SERVING = ServingSettings(max_speculative_tokens=4)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


def run(
    pair: ModelPair, asks: list[Ask], rates: list[float], compare: str, clients: int = 1
) -> list[dict[str, Any]]:
    plan = BenchPlan(len(asks), clients=(clients,), compare=configurations(compare))
    controlled = Controlled(pair, SERVING, plan, rates)
    with controlled.runner:
        found = controlled.run(asks, [], clients, 1e9, lambda: None)
    return rows_of(controlled, asks, found, clients, "float32")


@pytest.mark.parametrize("clients", [1, 3])
def test_none_and_all(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks, clients: int) -> None:
    rows = run(load_toy("random"), make_asks(6, 17), [0.0, 1.0], "off,k3", clients)
    assert [(row["name"], row["acceptance"], row["acceptance_rate"]) for row in rows] == [
        ("off", None, None),
        ("k3", 0.0, 0.0),
        ("k3", 1.0, 1.0),
    ]
    assert [row["tokens"] for row in rows] == [6 * 17] * 3
    assert all(row["equal"] and row["near_ties"] == 0 for row in rows)
    assert rows[2]["mean_acceptance_length"] == pytest.approx(17 / 5)


def test_a_share_in_between(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks) -> None:
    """Seeded; other prompts would fail with a probability of 0.001 (3.3 standard errors)."""
    rows = run(load_toy("random"), make_asks(16, 64), [0.6], "off,k3,auto,assisted")
    for row in rows[1:]:
        assert abs(row["accepted"] - 0.6 * row["tested"]) < 3.3 * math.sqrt(0.24 * row["tested"]), row["name"]
        assert row["equal"]


def test_the_real_draft_runs_in_full(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks) -> None:
    """As many proposals as without control where acceptance is 0: one step for each drafted token."""
    pair = load_toy("random")
    plan = BenchPlan(2, compare=configurations("off,k2"))
    controlled = Controlled(pair, SERVING, plan, [0.0])
    asks = make_asks(2, 9)
    with controlled.runner as runner:
        found = controlled.run(asks, [], 1, 1e9, lambda: None)
        proposed = runner.engine.statistics().proposed
    (_, speculating) = found.blocks
    # Nine tokens, one a round: two proposed while there is room, then one, then none.
    assert proposed == 2 * (2 * 7 + 1)
    assert all(answer.tested == 8 for block in speculating for answer in block.answers)


def test_known_answers() -> None:
    answers = KnownAnswers(vocab_size=10)
    prompt = (1, 2)
    answers.learn(prompt, (5, 6, 7, 8))
    assert answers.draft(prompt, (5,), 2, 1.0) == [6, 7]
    assert answers.draft(prompt, (5,), 2, 0.0) == [7, 8], "wrong tokens, never the right ones"
    assert answers.missed == 0
    assert answers.draft(prompt, (5, 9), 2, 1.0) == []
    assert answers.missed == 2
    answers.learn(prompt, (5, 9, 3))
    assert answers.draft(prompt, (5, 9), 2, 1.0) == [3]
    assert answers.draft((3,), (), 2, 1.0) == [], "a prompt that was never recorded"


def test_draws_belong_to_places_and_not_to_rounds() -> None:
    """A place is drafted rightly or wrongly whatever K it is drafted with."""
    answers, prompt = KnownAnswers(vocab_size=100), (4, 4)
    said = tuple(range(40))
    answers.learn(prompt, said)
    at_once = answers.draft(prompt, (), 40, 0.5)
    one_by_one = [answers.draft(prompt, said[:n], 1, 0.5)[0] for n in range(40)]
    assert at_once == one_by_one
    assert 8 < sum(a == b for a, b in zip(at_once, said, strict=True)) < 32


def test_plain_lanes_run_once() -> None:
    lanes = lanes_of(configurations("off,auto,generate,assisted"), [0.4, 0.8])
    assert [(lane.configuration.name, lane.acceptance) for lane in lanes] == [
        ("off", None), ("generate", None), ("auto", 0.4), ("assisted", 0.4), ("auto", 0.8), ("assisted", 0.8)
    ]  # fmt: skip


def test_the_target_is_left_as_it_was(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks) -> None:
    pair = load_toy("random")
    run(pair, make_asks(1, 8), [0.5], "off,assisted")
    assert "_get_candidate_generator" not in vars(pair.target.module)
    assert torch.is_inference_mode_enabled() is False
