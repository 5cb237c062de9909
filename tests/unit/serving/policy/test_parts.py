"""The parts of the policy, each by itself."""

from __future__ import annotations

import ast
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import redraft_serving.policy
from pydantic import ValidationError
from redraft_serving.policy.acceptance import Acceptance, PositionRates
from redraft_serving.policy.changes import ChangeDetector
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.exploration import Exploration
from redraft_serving.policy.gains import PLAIN, SPECULATING, Gains
from redraft_serving.policy.report import break_even
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.types import DRAFT, NGRAM, RoundTimes, RowOutcome, RowView

CPU = "cpu, draft step 4.5 ms"
SOURCES = sorted(Path(redraft_serving.policy.__file__).parent.glob("*.py"))


def _imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_the_policy_knows_nothing_of_models() -> None:
    """Only the standard library and itself; pydantic for the settings alone."""
    assert len(SOURCES) > 10
    for path in SOURCES:
        names = {name for name in _imported(path) if not name.startswith("redraft_serving.policy")}
        foreign = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
        assert foreign == ({"pydantic"} if path.name == "settings.py" else set()), path.name


def test_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        PolicySettings(explore=0.1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        PolicySettings(explore_share=0.5)
    assert all(field.description for field in PolicySettings.model_fields.values())


def test_rates_by_position_are_conditional_and_fall_back_to_the_position_before() -> None:
    rates, draw = PositionRates(PolicySettings()), Random(1)
    for _ in range(4000):
        accepted = 0
        while accepted < 3 and draw.random() < (0.9, 0.6, 0.3)[accepted]:
            accepted += 1
        rates.observe(3, 3, min(3, accepted + 1), accepted)
    # Standard errors of the decayed counts: 0.01 to 0.025.
    assert [rates.given(j) for j in range(3)] == pytest.approx([0.9, 0.6, 0.3], abs=0.06)
    assert rates.given(3) == rates.given(2)
    expected = 1 + 0.9 + 0.9 * 0.6 + 0.9 * 0.6 * 0.3
    assert rates.expected(3)[3] == pytest.approx(expected, rel=0.05)


def test_equal_rates_give_the_formula_of_the_geometric_sum() -> None:
    rates = PositionRates(PolicySettings(prior_acceptance=0.7))
    assert rates.expected(5)[5] == pytest.approx((1 - 0.7**6) / (1 - 0.7))


def test_recent_counts_weigh_more() -> None:
    rates = PositionRates(PolicySettings(half_life_tokens=100, prior_tokens=1, change_threshold=1e9))
    for hits in (1, 0):
        for _ in range(100):
            rates.observe(1, 1, 1, hits)
    assert rates.given(0) == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.1), (0.1, 0.8), (0.9, 0.4), (0.3, 0.9)])
def test_a_change_of_acceptance_is_noticed_within_some_tokens(before: float, after: float) -> None:
    rates, draw = PositionRates(PolicySettings()), Random(2)
    for _ in range(2000):
        rates.observe(1, 1, 1, int(draw.random() < before))
    tests = 0
    while abs(rates.given(0) - after) > 0.2:
        rates.observe(1, 1, 1, int(draw.random() < after))
        tests += 1
    assert tests <= 60


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
def test_false_alarms_are_rare(rate: float) -> None:
    """At least exp(threshold) = 22,000 tests lie between two of each side on average (Wald's bound); 40,000
    tests of a steady rate ring at most 10 times but for once in 1000 runs.
    """
    detector, draw, alarms = ChangeDetector(10.0), Random(3), 0
    for _ in range(40_000):
        if detector.observe(draw.random() < rate, rate) is not None:
            alarms += 1
            detector.reset()
    assert alarms <= 10


def test_a_swap_lets_old_counts_of_the_draft_weigh_little() -> None:
    acceptance = Acceptance(PolicySettings())
    for proposer in (DRAFT, NGRAM):
        for _ in range(500):
            acceptance.rates("d", proposer, "greedy").observe(2, 2, 1, 0)
    acceptance.age("d", DRAFT)
    assert acceptance.rates("d", DRAFT, "greedy").given(0) > 0.4
    assert acceptance.rates("d", NGRAM, "greedy").given(0) < 0.05
    assert acceptance.by_position("d")[NGRAM][0] < 0.01


def test_unknown_shapes_are_read_off_their_neighbours(lab: SimpleNamespace) -> None:
    """Monotone in rows and width, exact between linear neighbours."""
    table, truth = CostTable(), lab.machines[CPU].verify
    table.calibrate([RoundTimes(r, w, truth(r, w)) for r in (1, 8) for w in (1, 2, 9)])
    for rows, width in ((1, 5), (8, 9), (4, 1), (4, 2)):
        assert table.verify(rows, width) == pytest.approx(truth(rows, width), rel=1e-6)
    grid = [[table.verify(rows, width) for width in range(1, 12)] for rows in range(1, 12)]
    assert all(a <= b for line in grid for a, b in pairwise(line))
    assert all(a <= b for low, high in pairwise(grid) for a, b in zip(low, high, strict=True))


def test_one_known_width_takes_the_shape_of_the_nearest_rows(lab: SimpleNamespace) -> None:
    table = CostTable()
    table.calibrate([RoundTimes(1, 1, 1.0), RoundTimes(1, 5, 2.0), RoundTimes(2, 1, 1.5)])
    assert table.verify(2, 5) == pytest.approx(3.0)
    assert CostTable().verify(1, 1) == 0.0


def test_the_first_draft_step_may_be_longer() -> None:
    """1 step 6 ms, 4 steps 18 ms: a step takes 4, the first 2 more."""
    table = CostTable()
    table.calibrate(
        [RoundTimes(1, 0, 0.0, draft_rows=1, draft_steps=n, draft=t) for n, t in ((1, 0.006), (4, 0.018))]
    )
    assert [table.draft(1, k) for k in (0, 1, 2, 8)] == pytest.approx([0.0, 0.006, 0.010, 0.034])


def test_catching_up_is_no_draft_step() -> None:
    table = CostTable()
    table.calibrate([RoundTimes(1, 1, 0.03), RoundTimes(1, 0, 0.0, draft_rows=1, draft_steps=1, draft=0.005)])
    for _ in range(50):
        table.observe(RoundTimes(1, 2, 0.03, 1, 1, 0.005 + 300 * 0.0001, catch_up_tokens=300))
    assert table.draft(1, 1) == pytest.approx(0.005, rel=0.02)
    assert table.catch_up() == pytest.approx(0.0001, rel=0.05)


def test_a_pause_hardly_moves_a_cost_and_a_moved_cost_is_learned() -> None:
    """Width 1 all the time, width 5 every 20 rounds: one pause in it, then it really takes twice as long."""
    table = CostTable()
    table.calibrate([RoundTimes(1, 1, 0.03), RoundTimes(1, 5, 0.04)] * 5)

    def ratio(rounds: int, wide: float) -> float:
        for i in range(rounds):
            table.observe(RoundTimes(1, 5, wide) if i % 20 == 10 else RoundTimes(1, 1, 0.03))
        return table.verify(1, 5) / table.verify(1, 1)

    assert ratio(200, 0.04) == pytest.approx(4 / 3, rel=0.02)
    table.observe(RoundTimes(1, 5, 0.4))
    assert ratio(10, 0.04) == pytest.approx(4 / 3, rel=0.02)
    assert ratio(200, 0.08) == pytest.approx(8 / 3, rel=0.05)


def test_a_purse_pays_only_what_it_holds() -> None:
    exploration = Exploration(0.01, seed=0)
    assert not exploration.affords(["d"], 0.1)
    for _ in range(20):
        exploration.earn(["d", "other"], 1.0)
    assert exploration.affords(["d"], 0.0999)
    assert not exploration.affords(["d"], 0.11)
    assert exploration.affords(["d", "other"], 0.19)
    exploration.pay(["d"], DRAFT, 0.1)
    assert not exploration.affords(["d"], 0.001)
    assert exploration.affords(["other"], 0.0999)
    exploration.settle(["other"], -0.05)
    assert exploration.affords(["other"], 0.149)
    assert exploration.spent == pytest.approx(0.05)


def test_half_of_the_income_is_saved_for_evidence_of_a_change() -> None:
    exploration = Exploration(0.01, seed=0)
    due, regret = [], 0.1
    for i in range(600):
        exploration.earn(["d"], 1.0)
        if exploration.affords(["d"], regret) and exploration.due(["d"], DRAFT, regret):
            exploration.pay(["d"], DRAFT, regret)
            due.append(i)
    assert 550 * 0.01 / regret / 2 * 0.7 <= len(due) <= 600 * 0.01 / regret
    assert exploration.affords(["d"], 5 * regret)


def test_a_measured_gain_needs_rounds_of_both_sides() -> None:
    gains = Gains(0.01, 2000)
    for _ in range(50):
        gains.observe("d", 1, SPECULATING, 3, 0.05)
    assert gains.gain("d", 1) is None
    for _ in range(5):
        gains.observe("d", 1, PLAIN, 1, 0.03)
    assert gains.gain("d", 1) == pytest.approx(1.8)
    assert gains.gain("d", 2) is None


def test_a_gain_within_noise_is_no_veto() -> None:
    gains, draw = Gains(0.01, 2000), Random(4)
    for i in range(2000):
        gains.observe("d", 1, SPECULATING, draw.choice([1, 2, 3]), 0.06 * draw.uniform(0.7, 1.3))
        if i % 20 == 0:
            gains.observe("d", 1, PLAIN, 1, 0.03 * draw.uniform(0.7, 1.3))
        assert not gains.judge("d", 1, i)


class Losing:
    """Mixed in: the engine gives one token a round, whatever was accepted."""

    def _outcome(self, rates: list[float], k: int) -> RowOutcome:
        return RowOutcome(k, k, k, 1)


def test_a_measured_loss_switches_off_what_the_model_believes_in(lab: SimpleNamespace) -> None:
    simulation = type("LosingSimulation", (Losing, lab.Simulation), {})(
        lab.machines[CPU], {("d", DRAFT): lab.level(0.9)}, settings=PolicySettings(veto_rounds=600)
    )
    tally = simulation.run(1500, lab.rows())
    decided = dict(tally.decided())
    off = [i for i, (proposer, _) in decided.items() if proposer is None]
    assert off[0] <= 800
    assert all(decided.get(i, (None, 0)) == (None, 0) for i in range(off[0], off[0] + 600))
    assert decided[off[0] + 610][0] == DRAFT
    assert tally.flaps() == 0
    while simulation.governor.report("d").state != "off":
        simulation.run(10, lab.rows())
    report = simulation.governor.report("d")
    assert report.reason.startswith("off: measured 0.")
    assert report.num_speculative_tokens == 0


def test_break_even() -> None:
    assert break_even(2, 1.6) == pytest.approx(0.4220, abs=1e-3)
    assert break_even(3, 4.5) is None
    assert break_even(0, 1.0) is None
    assert break_even(1, 0.9) == pytest.approx(0.0, abs=1e-6)


def test_a_report_says_why_it_is_off_and_why_it_is_on(lab: SimpleNamespace) -> None:
    for rate, state in ((0.1, "off"), (0.8, "speculating")):
        costs = lab.machines[CPU]
        simulation = lab.Simulation(costs, {("d", DRAFT): lab.level(rate)}, seed=5)
        simulation.run(900, lab.rows())
        report = simulation.governor.report("d")
        assert (report.setting, report.state) == ("auto", state)
        assert report.reason.startswith(
            f"{state}: at acceptance {report.acceptance_by_position[DRAFT][0]:.2f}"
        )
        assert "plain rounds" in report.reason
        assert report.draft_step_seconds == pytest.approx(0.0045, rel=0.02)
        assert report.plain_seconds == pytest.approx(0.0335, rel=0.02)
        assert report.rest_seconds == pytest.approx(0.0005, rel=0.02)
        assert report.break_even_acceptance is not None
        gain = report.modelled_gain or 0.0
        assert (gain < 1) == (state == "off")
        assert (report.acceptance_by_position[DRAFT][0] > report.break_even_acceptance) == (state != "off")
        assert report.probes + report.baselines > 0
        if state == "speculating":
            assert report.measured_gain == pytest.approx(gain, rel=0.1)
            assert report.verify_seconds == pytest.approx(
                costs.verify(1, 1 + report.num_speculative_tokens), rel=0.02
            )


def test_a_report_without_rounds_and_with_settings(lab: SimpleNamespace) -> None:
    governor = lab.Simulation(lab.machines[CPU], {("d", DRAFT): lab.level(0.5)}).governor
    report = governor.report("d")
    assert (report.state, report.reason, report.verify_seconds) == ("off", "nothing was generated yet", None)
    governor.configure("d", 3)
    assert (governor.report("d").setting, governor.report("d").state) == (3, "fixed")
    governor.plan([RowView("d", "greedy", {DRAFT: 8}, 3)])
    report = governor.report("d")
    assert (report.state, report.num_speculative_tokens, report.proposer) == ("fixed", 3, DRAFT)
    assert report.reason == "fixed: the setting asks for 3 tokens a round"
    governor.configure("d", None)
    governor.plan([RowView("d", "greedy", {DRAFT: 8})])
    assert governor.report("d").setting == "auto"


def test_the_end_of_a_request_says_nothing_of_its_domain(lab: SimpleNamespace) -> None:
    """With no room left a row decodes plainly; the domain speculates all the same."""
    simulation = lab.Simulation(lab.machines[CPU], {("d", DRAFT): lab.level(0.8)}, seed=6)
    governor = simulation.governor
    assert governor.wants_draft("d")
    simulation.run(300, lab.rows())
    simulation.run(3, [RowView("d", "greedy", {})])
    assert governor.report("d").state == "speculating"
    assert governor.wants_draft("d")
    simulation.acceptances["d", DRAFT] = lab.level(0.05)
    simulation.run(300, lab.rows())
    assert governor.report("d").state == "off"
    assert not governor.wants_draft("d")
