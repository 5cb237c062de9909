"""Traffic and machines that change: the policy follows, comes back by itself, and does not flap."""

from __future__ import annotations

from math import log
from random import Random
from types import SimpleNamespace

import pytest
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.speed import Cell, Machine
from redraft_serving.policy.types import DRAFT

CPU, SLOW_DRAFT = "cpu, draft step 4.5 ms", "cpu, draft step 11 ms"
NO_HYSTERESIS = PolicySettings(switch_margin=0.0, dwell_rounds=0)


class OneCellAlone(Machine):
    """The wrong variant: no common speed, each shape learns by itself."""

    def update(self, kind: str, cell: Cell, seconds: float) -> float:
        move = 0.1 * (log(seconds) - cell.value)
        cell.value += move
        return move


def through(
    lab: SimpleNamespace, simulation: object, rates: list[float], rounds: int, rows: int = 1
) -> float:
    """Time that the oracle needs for the same tokens, over the time taken, acceptance changing on the way."""
    ideal = taken = 0.0
    for rate in rates:
        simulation.acceptances["d", DRAFT] = lab.level(rate)  # type: ignore[attr-defined]
        tally = simulation.run(rounds, lab.rows(rows))  # type: ignore[attr-defined]
        ideal += tally.tokens / lab.oracle(simulation.costs, lab.level(rate), rows)[0]  # type: ignore[attr-defined]
        taken += tally.seconds
    return ideal / taken


@pytest.mark.parametrize(
    ("machine", "rows"), [(CPU, 1), (SLOW_DRAFT, 1), ("gpu, width nearly free", 1), (CPU, 8)]
)
def test_within_five_percent_of_the_oracle_through_drifts(
    lab: SimpleNamespace, machine: str, rows: int
) -> None:
    simulation = lab.Simulation(lab.machines[machine], {("d", DRAFT): lab.level(0.8)}, seed=1, noise=0.05)
    rounds = 1000 if rows == 1 else 400
    simulation.run(300, lab.rows(rows))
    assert through(lab, simulation, [0.8, 0.1, 0.8], rounds, rows) >= 0.95
    assert through(lab, simulation, [0.1, 0.5, 0.8, 0.3], rounds, rows) >= 0.95


def test_domains_that_take_turns_keep_their_own_choices(lab: SimpleNamespace) -> None:
    """One row at a time, 150 rounds of one domain, then of another: each change is met at once."""
    costs = lab.machines[CPU]
    truth = {("easy", DRAFT): lab.level(0.9), ("hard", DRAFT): lab.level(0.1)}
    simulation = lab.Simulation(costs, truth, seed=2, noise=0.05)
    simulation.run(300, lab.rows(domain="easy"))
    simulation.run(300, lab.rows(domain="hard"))
    ideal = taken = 0.0
    for turn in range(10):
        domain = ("easy", "hard")[turn % 2]
        tally = simulation.run(150, lab.rows(domain=domain))
        ideal += tally.tokens / lab.oracle(costs, truth[domain, DRAFT])[0]
        taken += tally.seconds
    assert ideal / taken >= 0.98


@pytest.mark.parametrize("machine", [CPU, SLOW_DRAFT])
def test_comes_back_by_itself_when_acceptance_recovers(lab: SimpleNamespace, machine: str) -> None:
    """Off at 0.1; at 0.8 it speculates again within some hundred rounds, and speculates deeply."""
    waits = []
    for seed in range(6):
        simulation = lab.Simulation(lab.machines[machine], {("d", DRAFT): lab.level(0.1)}, seed=seed)
        assert simulation.run(500, lab.rows()).decided()[-1][1] == (None, 0)
        simulation.acceptances["d", DRAFT] = lab.level(0.8)
        decided = simulation.run(1000, lab.rows()).decided()
        waits.append(next(i for i, (proposer, _) in decided if proposer == DRAFT))
        assert decided[-1][1][1] >= 2
    assert max(waits) <= 500
    assert sum(waits) / len(waits) <= 250


def test_without_probes_it_would_never_come_back(lab: SimpleNamespace) -> None:
    simulation = lab.Simulation(
        lab.machines[CPU], {("d", DRAFT): lab.level(0.1)}, settings=PolicySettings(explore_share=0.0)
    )
    simulation.run(500, lab.rows())
    simulation.acceptances["d", DRAFT] = lab.level(0.8)
    assert {choice for _, choice in simulation.run(1500, lab.rows()).decided()} == {(None, 0)}


NEAR_BREAK_EVEN = [(CPU, 0.16, 1), (SLOW_DRAFT, 0.36, 1), (CPU, 0.62, 1), (CPU, 0.62, 8)]


def _noisy(lab: SimpleNamespace, machine: str, rate: float, settings: PolicySettings | None) -> object:
    """Times with 20 % noise and one in a hundred of them ten times as long."""
    return lab.Simulation(
        lab.machines[machine], {("d", DRAFT): lab.level(rate)}, seed=3, noise=0.2, outliers=0.01,
        settings=settings,
    )  # fmt: skip


@pytest.mark.parametrize(("machine", "rate", "rows"), NEAR_BREAK_EVEN)
def test_never_returns_to_a_choice_within_50_rounds(
    lab: SimpleNamespace, machine: str, rate: float, rows: int
) -> None:
    tally = _noisy(lab, machine, rate, None).run(1500, lab.rows(rows))  # type: ignore[attr-defined]
    assert tally.flaps(within=50) == 0
    assert tally.switches() <= 1500 / 50


def test_without_hysteresis_it_would_flap(lab: SimpleNamespace) -> None:
    flaps = [
        _noisy(lab, machine, rate, NO_HYSTERESIS).run(1000, lab.rows(rows)).flaps()  # type: ignore[attr-defined]
        for machine, rate, rows in NEAR_BREAK_EVEN[:3]
    ]
    assert sum(flaps) >= 5


@pytest.mark.parametrize(("rate", "off"), [(0.8, False), (0.05, True)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_machine_that_slows_down_changes_no_decision(
    lab: SimpleNamespace, rate: float, off: bool, noise: float
) -> None:
    """All shapes take three times as long from one round to the next, and later as long as before."""
    simulation = lab.Simulation(lab.machines[CPU], {("d", DRAFT): lab.level(rate)}, seed=4, noise=noise)
    simulation.run(800, lab.rows())
    before = simulation.run(200, lab.rows()).decided()[-1][1]
    for slow in (3.0, 1.0, 10.0):
        simulation.slow = slow
        decided = simulation.run(300, lab.rows()).decided()
        assert {proposer for _, (proposer, _) in decided} == ({None} if off else {DRAFT})
        # With noise, neighbours that are worth the same may take turns, as they do on a steady machine.
        assert all(abs(k - before[1]) <= (noise > 0) for _, (_, k) in decided)


def test_without_a_common_speed_a_slow_machine_would_change_decisions(lab: SimpleNamespace) -> None:
    """What was not measured since the change looks fast."""
    simulation = lab.Simulation(lab.machines[CPU], {("d", DRAFT): lab.level(0.8)}, seed=4)
    simulation.governor.costs.machine = OneCellAlone()
    before = simulation.run(800, lab.rows()).decided()[-1][1]
    simulation.slow = 3.0
    assert max(abs(k - before[1]) for _, (_, k) in simulation.run(300, lab.rows()).decided()) > 1


def test_a_gradual_slow_down_is_followed(lab: SimpleNamespace) -> None:
    """Three times as slow over 1000 rounds: no switch, and the modelled rate stays true."""
    costs, truth = lab.machines[CPU], lab.level(0.8)
    simulation = lab.Simulation(costs, {("d", DRAFT): truth}, seed=5, noise=0.03)
    before = simulation.run(800, lab.rows()).decided()[-1][1]
    for _ in range(20):
        simulation.slow *= 3.0**0.05
        decided = simulation.run(50, lab.rows()).decided()
        assert all(abs(k - before[1]) <= 1 for _, (_, k) in decided)
    modelled = simulation.governor.plan(lab.rows()).tokens_per_second
    assert modelled == pytest.approx(lab.oracle(costs, truth)[0] / simulation.slow, rel=0.1)


def test_a_swap_of_the_draft_is_tried_at_once(lab: SimpleNamespace) -> None:
    """Off with the old draft; `age` lets the new one prove itself without waiting for probes."""
    simulation = lab.Simulation(lab.machines[CPU], {("d", DRAFT): lab.level(0.1)}, seed=6)
    simulation.run(1000, lab.rows())
    simulation.acceptances["d", DRAFT] = lab.level(0.8)
    simulation.governor.age("d")
    decided = simulation.run(60, lab.rows()).decided()
    assert decided[0][0] == 0
    assert next(i for i, (proposer, _) in decided if proposer == DRAFT) <= 8


@pytest.mark.parametrize(("stay", "floor"), [(0.9, 0.95), (0.995, 1.0)])
def test_text_in_bursts_does_not_unsettle_it(lab: SimpleNamespace, stay: float, floor: float) -> None:
    """Easy and hard passages of ten rounds are one traffic, of two hundred rounds they are two.

    Against the best fixed K on the same passages: close to it where passages are too short to follow, better
    where they can be followed.
    """
    costs, draw, hard = lab.machines[CPU], Random(7), False
    simulation = lab.Simulation(costs, {}, seed=7, noise=0.05)
    tokens, seconds, passages = 0.0, 0.0, []
    for _ in range(3000):
        hard = hard if draw.random() < stay else not hard
        passages.append(hard)
        simulation.acceptances["d", DRAFT] = lab.level(0.1 if hard else 0.85)
        tally = simulation.run(1, lab.rows())
        tokens, seconds = tokens + tally.tokens, seconds + tally.seconds
    share = sum(passages) / len(passages)
    fixed = [
        (share * lab.expected(lab.level(0.1), k) + (1 - share) * lab.expected(lab.level(0.85), k))
        / costs.seconds(1, 1 + k, k, 1 if k else 0)
        for k in range(9)
    ]
    assert tokens / seconds >= floor * max(fixed)
