"""Says what the policy does for a domain, from which numbers, in one sentence that a person understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from redraft_serving.policy.acceptance import Acceptance
from redraft_serving.policy.batch import Batch
from redraft_serving.policy.choose import Choice
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.types import DRAFT, PolicyReport, RowPlan, Setting
from redraft_serving.policy.workload import Workload

State = Literal["speculating", "off", "fixed"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the governor knows of one domain."""

    domain: str
    configured: Setting | None
    batch: Batch | None
    """The last decided round that the domain had rows in."""
    veto: float | None
    measured_gain: float | None
    switches: int = 0
    probes: int = 0
    baselines: int = 0


@dataclass(frozen=True, slots=True)
class _Case:
    """The choice that a report is about: the decided one or, where it is plain, the best that was refused."""

    workload: Workload
    choice: Choice
    group: int
    k: int

    @property
    def gain(self) -> float:
        return self.workload.rate(self.choice) / self.workload.rate(self.workload.plain)

    @property
    def plain_rounds(self) -> float:
        """How many plain rounds one round of it takes."""
        return self.workload.time(self.choice) / self.workload.time(self.workload.plain)

    @property
    def tokens(self) -> float:
        """Expected of one row of the domain."""
        return self.workload.row_tokens(self.choice, self.group)


def make_report(facts: Facts, costs: CostTable, acceptance: Acceptance) -> PolicyReport:
    """The report of one domain; numbers without data are None."""
    part = _part(facts)
    rates = acceptance.by_position(facts.domain)
    setting = facts.configured if facts.configured is not None else _setting(facts)
    state = _state(facts, setting, part)
    case = _case(facts)
    rows = len(facts.batch.rows) if facts.batch is not None else 0
    k = case.k if case is not None else part.k
    known = costs.known and rows > 0
    return PolicyReport(
        setting=setting,
        state=state,
        reason=_reason(facts, state, part, case, rates),
        num_speculative_tokens=part.k,
        proposer=part.proposer,
        acceptance_by_position=rates,
        draft_step_seconds=costs.draft(rows, max(1, k)) / max(1, k) if known and costs.draft_known else None,
        verify_seconds=costs.verify(rows, 1 + k) if known else None,
        plain_seconds=costs.verify(rows, 1) + costs.rest(rows, False) if known else None,
        rest_seconds=costs.rest(rows, part.k > 0) if known else None,
        break_even_acceptance=break_even(case.k, case.plain_rounds) if case is not None else None,
        modelled_gain=case.gain if case is not None else None,
        measured_gain=facts.measured_gain,
        switches=facts.switches,
        probes=facts.probes,
        baselines=facts.baselines,
    )


def break_even(k: int, plain_rounds: float) -> float | None:
    """Acceptance per token at which a round of K tokens gives as many as the plain rounds that it costs.

    Solves (1 - a^(k+1)) / (1 - a) = plain_rounds (Leviathan et al. 2023, eq. 1). None where no acceptance
    can.
    """
    if k < 1 or plain_rounds > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**j for j in range(k + 1)) < plain_rounds else (low, middle)
    return (low + high) / 2


def _members(facts: Facts) -> Sequence[int]:
    rows = facts.batch.rows if facts.batch is not None else ()
    return [b for b, row in enumerate(rows) if row.domain == facts.domain]


def _part(facts: Facts) -> RowPlan:
    """What the domain's most eager row did in the last decided round."""
    if facts.batch is None or facts.batch.plan is None:
        return RowPlan(None, 0)
    return max((facts.batch.plan.rows[b] for b in _members(facts)), key=lambda part: part.k)


def _setting(facts: Facts) -> Setting:
    settings = [facts.batch.rows[b].setting for b in _members(facts)] if facts.batch is not None else []
    return settings[0] if settings else "auto"


def _state(facts: Facts, setting: Setting, part: RowPlan) -> State:
    seen = _setting(facts) if facts.batch is not None else setting
    if seen != "auto":
        return "fixed"
    return "speculating" if part.k else "off"


def _case(facts: Facts) -> _Case | None:
    batch = facts.batch
    if batch is None or batch.mode is None or batch.mode.workload is None:
        return None
    workload = batch.mode.workload
    groups = sorted({batch.groups[b] for b in _members(facts)})
    for group in groups:
        k = batch.mode.choice.part(group)[1]
        if k and workload.groups[group].fixed is None:
            return _Case(workload, batch.mode.choice, group, k)
    return _refused(workload, groups)


def _refused(workload: Workload, groups: Sequence[int]) -> _Case | None:
    """The best choice in which the domain would speculate."""
    for option in sorted(workload.options(), reverse=True):
        choice = workload.choice(option)
        for group in groups:
            if choice.part(group)[1] and workload.groups[group].fixed is None:
                return _Case(workload, choice, group, choice.part(group)[1])
    return None


def _reason(
    facts: Facts, state: State, part: RowPlan, case: _Case | None, rates: dict[str, tuple[float, ...]]
) -> str:
    if facts.batch is None:
        return "nothing was generated yet"
    if state == "fixed":
        return f"fixed: the setting asks for {_setting(facts)} tokens a round"
    if facts.veto is not None:
        return f"off: measured {facts.veto:.2f} times plain decoding, whatever the model promises"
    if case is None:
        return f"{state}: no proposer offers anything" if not part.k else f"{state}: no times are known yet"
    return f"{state}: {_arithmetic(case, rates)}"


def _arithmetic(case: _Case, rates: dict[str, tuple[float, ...]]) -> str:
    proposer = case.choice.proposers[case.group] or DRAFT
    first = rates.get(proposer, ())
    at = f"at acceptance {first[0]:.2f}" if first else "at an assumed acceptance"
    needed = break_even(case.k, case.plain_rounds)
    ending = f"; break-even {needed:.2f}" if needed is not None else "; no acceptance pays for it"
    rows = "" if case.workload.rows == 1 else f" of {case.workload.rows} rows"
    return (
        f"{at} a round{rows} of K={case.k} ({proposer}) costs {case.plain_rounds:.2f} plain rounds "
        f"and gives {case.tokens:.2f} tokens{' a row' if rows else ''}{ending}"
    )
