"""Batches of unlike rows: proposers by row, fixed numbers, offers, domains, and how exact the choice is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from types import SimpleNamespace

import pytest
from redraft_serving.policy.choose import Group
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.governor import Governor
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.types import DRAFT, NGRAM, PREDICTION, RoundTimes, RowOutcome, RowView
from redraft_serving.policy.workload import Workload

CPU = "cpu, draft step 4.5 ms"


def _table(lab: SimpleNamespace, draw: Random) -> list[float]:
    """Expected tokens of a row that proposes 0, 1, ... tokens."""
    rates = lab.level(draw.uniform(0.05, 0.95))
    return [lab.expected(rates, k) for k in range(draw.choice([0, 2, 3]) + 1)]


def _brute_force(costs: CostTable, tables: Sequence[tuple[list[float], list[float]]]) -> float:
    """Best tokens per second over every proposer and number of tokens of every row."""
    options = [
        [(DRAFT, k, e) for k, e in enumerate(drafted) if k] + [(NGRAM, k, e) for k, e in enumerate(guessed)]
        for drafted, guessed in tables
    ]
    best = 0.0
    for parts in product(*options):
        depths = [k for proposer, k, _ in parts if proposer == DRAFT]
        seconds = costs.verify(len(parts), 1 + max(k for _, k, _ in parts))
        seconds += costs.draft(len(depths), max(depths, default=0))
        best = max(best, sum(e for _, _, e in parts) / seconds)
    return best


def test_the_choice_is_the_best_of_all(lab: SimpleNamespace) -> None:
    """Against every combination of proposer and number of tokens of three unlike rows."""
    draw = Random(1)
    for _ in range(40):
        costs, step, wide = CostTable(), draw.uniform(0.02, 0.4), draw.uniform(0.0, 0.1)
        shapes = [(rows, width) for rows in (1, 2, 3) for width in range(1, 5)]
        costs.calibrate([RoundTimes(r, w, 1 + 0.1 * r + wide * r * w) for r, w in shapes])
        costs.calibrate(
            [
                RoundTimes(r, 0, 0.0, draft_rows=r, draft_steps=1, draft=step * (1 + 0.2 * r))
                for r in (1, 2, 3)
            ]
        )
        tables = [(_table(lab, draw), _table(lab, draw)) for _ in range(3)]
        groups = [
            Group(
                1,
                drafted if len(drafted) > 1 else (),
                [(e, NGRAM if k else None) for k, e in enumerate(guessed)],
            )
            for drafted, guessed in tables
        ]
        workload = Workload(groups, costs)
        best = max(workload.options())
        assert best[0] == pytest.approx(_brute_force(costs, tables))
        assert workload.rate(workload.choice(best)) == pytest.approx(best[0])


def test_one_row_takes_the_proposer_that_gives_more(lab: SimpleNamespace) -> None:
    for ngram, chosen in ((0.8, NGRAM), (0.1, DRAFT)):
        truth = {("d", DRAFT): lab.level(0.6), ("d", NGRAM): lab.level(ngram)}
        simulation = lab.Simulation(lab.machines[CPU], truth, seed=1)
        tally = simulation.run(800, lab.rows(ngram=8))
        assert tally.decided()[-1][1][0] == chosen


def test_rows_with_a_match_guess_while_the_others_draft(lab: SimpleNamespace) -> None:
    truth = {("d", DRAFT): lab.level(0.8), ("copy", DRAFT): lab.level(0.6), ("copy", NGRAM): lab.level(0.95)}
    simulation = lab.Simulation(lab.machines[CPU], truth, seed=2)
    rows = [*lab.rows(2), *lab.rows(2, domain="copy", ngram=8)]
    decided = simulation.run(600, rows)
    assert [proposer for proposer, _ in decided.last] == [DRAFT, DRAFT, NGRAM, NGRAM]
    drafted, guessed = decided.last[0][1], decided.last[2][1]
    assert guessed >= drafted


def test_matches_that_come_and_go_cost_nothing(lab: SimpleNamespace) -> None:
    """One round in two has a match of three tokens or more: each kind of round takes its own best choice."""
    costs = lab.machines[CPU]
    truth = {("d", DRAFT): lab.level(0.6), ("d", NGRAM): lab.level(0.8)}
    with_match, without = lab.rows(ngram=8), lab.rows()
    draw = Random(3)
    simulation = lab.Simulation(costs, truth, seed=3)

    def rows(_: int) -> list[RowView]:
        return with_match if draw.random() < 0.5 else without

    simulation.run(500, rows)
    tally = simulation.run(1500, rows)
    guess = max(lab.expected(lab.level(0.8), k) / costs.seconds(1, 1 + k, 0, 0) for k in range(9))
    draft = lab.oracle(costs, lab.level(0.6))[0]
    # Rounds of either kind come equally often; each gives its own tokens per second.
    k_guess = max(range(9), key=lambda k: lab.expected(lab.level(0.8), k) / costs.seconds(1, 1 + k, 0, 0))
    k_draft = lab.oracle(costs, lab.level(0.6))[1]
    tokens = lab.expected(lab.level(0.8), k_guess) + lab.expected(lab.level(0.6), k_draft)
    seconds = lab.expected(lab.level(0.8), k_guess) / guess + lab.expected(lab.level(0.6), k_draft) / draft
    assert tally.rate >= 0.985 * tokens / seconds


def test_offers_are_never_exceeded_and_fixed_rows_get_what_they_ask_for(lab: SimpleNamespace) -> None:
    truth = {("d", name): lab.level(0.7) for name in (DRAFT, NGRAM, PREDICTION)}
    simulation, draw = lab.Simulation(lab.machines[CPU], truth, seed=4), Random(4)
    for _ in range(400):
        rows = [
            RowView(
                "d",
                draw.choice(["greedy", "warm"]),
                {
                    name: draw.randint(0, 8)
                    for name in draw.sample([DRAFT, NGRAM, PREDICTION], draw.randint(0, 3))
                },
                draw.choice(["auto", "auto", 0, 3]),
            )
            for _ in range(draw.randint(1, 4))
        ]
        tally = simulation.run(1, rows)
        for row, (proposer, k) in zip(rows, tally.choices[0], strict=True):
            assert (proposer is None) == (k == 0)
            assert proposer is None or k <= row.offers[proposer]
            if row.setting == 0:
                assert k == 0
            if row.setting == 3:
                first = next((n for n in (PREDICTION, DRAFT, NGRAM) if row.offers.get(n, 0)), None)
                assert (proposer, k) == (first, min(3, row.offers[first]) if first else 0)


def test_no_rows_no_plan() -> None:
    assert Governor(PolicySettings()).plan([]).rows == ()


def test_a_fixed_number_beyond_what_auto_may_propose(lab: SimpleNamespace) -> None:
    simulation = lab.Simulation(lab.machines[CPU], {("d", DRAFT): [0.9] * 20}, seed=5)
    row = RowView("d", "greedy", {DRAFT: 20}, 16)
    assert set(simulation.run(20, [row]).choices) == {((DRAFT, 16),)}


def test_auto_rows_use_the_width_that_a_fixed_row_pays_for(lab: SimpleNamespace) -> None:
    """A match that would not pay alone is free inside the width of another row's five drafted tokens."""
    truth = {("fixed", DRAFT): lab.level(0.8), ("d", NGRAM): lab.level(0.2)}
    costs = lab.Costs(lambda _, width: 0.03 + 0.01 * width, lambda _: 0.004)
    simulation = lab.Simulation(costs, truth, seed=6)
    alone = simulation.run(300, [RowView("d", "greedy", {NGRAM: 8})])
    assert alone.decided()[-1][1] == (None, 0)
    rows = [RowView("fixed", "greedy", {DRAFT: 8}, 5), RowView("d", "greedy", {NGRAM: 8})]
    assert simulation.run(300, rows).decided(row=1)[-1][1] == (NGRAM, 5)


def test_an_off_domain_beside_a_speculating_one_is_probed_and_comes_back(lab: SimpleNamespace) -> None:
    """Drafting at acceptance 0.02 adds nothing but a step over more rows; each domain has its own probes."""
    costs = lab.Costs(lambda rows, width: 0.03 + 0.0005 * rows * width, lambda rows: 0.0005 + 0.002 * rows)
    truth = {("easy", DRAFT): lab.level(0.8), ("hard", DRAFT): lab.level(0.02)}
    simulation = lab.Simulation(costs, truth, seed=7)
    rows = [*lab.rows(2, domain="easy"), *lab.rows(2, domain="hard")]
    proposers = [proposer for proposer, _ in simulation.run(500, rows).last]
    assert proposers == [DRAFT, DRAFT, None, None]
    assert simulation.governor.report("hard").probes > 0
    simulation.acceptances["hard", DRAFT] = lab.level(0.8)
    tally = simulation.run(700, rows)
    assert [proposer for proposer, _ in tally.last] == [DRAFT] * 4


def test_each_of_several_domains_that_are_off_gets_its_probes(lab: SimpleNamespace) -> None:
    domains = ["a", "b", "c"]
    truth = {(domain, DRAFT): lab.level(0.1) for domain in domains}
    simulation = lab.Simulation(lab.machines[CPU], truth, seed=8)
    simulation.run(1500, lambda i: lab.rows(domain=domains[i // 10 % 3]))
    probes = [simulation.governor.report(domain).probes for domain in domains]
    assert min(probes) >= 3
    simulation.acceptances["b", DRAFT] = lab.level(0.8)
    simulation.run(1500, lambda i: lab.rows(domain=domains[i // 10 % 3]))
    states = {domain: simulation.governor.report(domain).state for domain in domains}
    assert states == {"a": "off", "b": "speculating", "c": "off"}


def test_probes_take_rows_that_the_draft_need_not_catch_up_with(lab: SimpleNamespace) -> None:
    """Once catching up is known to be dear, the row that is least behind is probed, and others are spared."""
    simulation = lab.Simulation(lab.machines[CPU], {("d", DRAFT): lab.level(0.1)}, seed=9)
    simulation.governor.calibrate(
        [RoundTimes(1, 0, 0.0, draft_rows=1, draft_steps=1, draft=0.5, catch_up_tokens=500)]
    )
    rows = [RowView("d", "greedy", {DRAFT: 8}, behind=behind) for behind in (900, 2, 700, 800)]
    tally = simulation.run(1500, rows)
    probed = [c for c, kind in zip(tally.choices, tally.kinds, strict=True) if kind == "probe"]
    assert probed
    assert {tuple(b for b, (_, k) in enumerate(c) if k) for c in probed} == {(1,)}


def test_temperature_classes_are_told_apart(lab: SimpleNamespace) -> None:
    governor = Governor(PolicySettings())
    costs = lab.machines[CPU]
    for i in range(800):
        greedy = i % 2 == 0
        rows = [RowView("d", "greedy" if greedy else "warm", {DRAFT: 8})]
        plan = governor.plan(rows)
        k = plan.rows[0].k
        accepted = k if greedy else 0
        times = RoundTimes(1, 1 + k, costs.verify(1, 1 + k), 1 if k else 0, k, k * costs.step(1))
        governor.observe(rows, plan, times, [RowOutcome(k, min(k, accepted + 1), accepted, accepted + 1)])
    assert governor.plan([RowView("d", "greedy", {DRAFT: 8})]).rows[0].k >= 4
    assert governor.plan([RowView("d", "cool", {DRAFT: 8})]).rows[0].k > 0
    plans = [governor.plan([RowView("d", "warm", {DRAFT: 8})]) for _ in range(3)]
    assert {plan.rows[0].k for plan in plans if plan.kind == "decided"} == {0}


def test_rows_that_are_offered_nothing_decode_plainly(lab: SimpleNamespace) -> None:
    simulation = lab.Simulation(lab.machines[CPU], {})
    tally = simulation.run(50, [RowView("d", "greedy", {}), RowView("d", "warm", {DRAFT: 0})])
    assert set(tally.choices) == {((None, 0), (None, 0))}
    assert simulation.governor.report("d").reason == "off: no proposer offers anything"
