"""Decides before each round how far to speculate and with what, and learns from what came of it.

    plan     sort the rows into kinds, take their mode or decide it anew, perhaps measure something instead
    observe  times to the costs, outcomes to the acceptance, both to the measured gain; then the purses

For one thread (`report` may be called from others). No clock, and no randomness but the seed's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from redraft_serving.policy.acceptance import Acceptance
from redraft_serving.policy.batch import Batch
from redraft_serving.policy.confidence import Calibration
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.gains import PLAIN, SPECULATING, Gains
from redraft_serving.policy.hysteresis import Mode, Modes
from redraft_serving.policy.kinds import MAX_KINDS, Kinds, group
from redraft_serving.policy.measuring import Measuring
from redraft_serving.policy.report import Facts, make_report
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.stopping import worth_going_on
from redraft_serving.policy.types import (
    DRAFT,
    Plan,
    PolicyReport,
    RoundTimes,
    RowOutcome,
    RowPlan,
    RowView,
    Setting,
)
from redraft_serving.policy.workload import Workload

ROOM = 3
"""Tokens that a row has to offer at least for its part to say something of its domain."""


class Governor:
    """The policy of one engine: all domains, all rows."""

    def __init__(self, settings: PolicySettings, seed: int = 0, most: int = 8) -> None:
        """`most`: tokens that it proposes at most for a row in a round."""
        self.settings = settings
        self.costs = CostTable()
        self.acceptance = Acceptance(settings)
        self.confidence = Calibration(settings)
        self.gains = Gains(settings.switch_margin, settings.veto_rounds)
        self.measuring = Measuring(settings, seed, self.acceptance, self.costs, self.gains)
        self._modes = Modes(settings)
        self._kinds = Kinds(most)
        self._configured: dict[str, Setting] = {}
        self._last: dict[str, Batch] = {}
        self._drafting: dict[str, bool] = {}
        self._planned: tuple[Plan, Sequence[RowView]] | None = None
        self._clock = 0

    def configure(self, domain: str, setting: Setting | None) -> None:
        """A domain's own setting, for reports; None: the worker's."""
        if setting is None:
            self._configured.pop(domain, None)
        else:
            self._configured[domain] = setting

    def calibrate(self, cells: Iterable[RoundTimes]) -> None:
        """Start from shapes measured on purpose, each best three times or more (their median counts).

        Any parts of a round: `verify` with rows and width; `draft` with draft_rows and draft_steps (best both
        1 step and several: the first may be longer); `rest` with rows and width. What took no time counts as
        not measured.
        """
        self.costs.calibrate(cells)

    def age(self, domain: str) -> None:
        """The domain's draft was swapped: what was counted with the old one weighs little from now on."""
        self.acceptance.age(domain, DRAFT)
        self.confidence.age(domain)
        self.gains.forget(domain)

    def survival(self, domain: str, temperature: str, confidences: Sequence[float]) -> float:
        """Probability that all tokens drafted so far for a row are accepted, from their confidences."""
        return self.confidence.survival(domain, temperature, confidences)

    def plan(self, rows: Sequence[RowView]) -> Plan:
        """Decide a round. Rows keep their order; offers are never exceeded."""
        self._clock += 1
        if len(self._kinds) > MAX_KINDS:
            self._kinds.clear()
            self._modes.clear()
        batch = Batch(rows, self._kinds)
        plan = self._decide(batch) if self.costs.known and rows else Plan(batch.apply(None), "decided", None)
        if plan.kind == "decided":
            batch.plan = plan
            self._remember(batch)
        self._planned = plan, rows
        return plan

    def keep_drafting(self, plan: Plan, step: int, survivals: Sequence[float]) -> bool:
        """Whether to draft one more token after `step`: is it worth the time that it takes?

        `survivals[b]`: probability that all tokens drafted so far for row b of the plan are accepted (0 for a
        row that does not draft). Probes are drafted to their end: they are there to measure.
        """
        if self._planned is None or self._planned[0] is not plan or plan.kind == "probe":
            return True
        return worth_going_on(self._planned[1], plan, step, survivals, self.acceptance, self.costs)

    def observe(
        self, rows: Sequence[RowView], plan: Plan, times: RoundTimes, outcomes: Sequence[RowOutcome]
    ) -> None:
        """Learn from a round that was run by `plan`, rows in its order."""
        self.costs.observe(times)
        for row, decided, outcome in zip(rows, plan.rows, outcomes, strict=True):
            if decided.proposer is not None:
                self._learn(row, decided.proposer, decided, outcome)
        tokens, seconds = sum(o.emitted for o in outcomes), times.verify + times.draft + times.rest
        self._measure(rows, plan, tokens, seconds / self.costs.machine.speed)
        self.measuring.observe(rows, plan, tokens, seconds, self._clock)

    def wants_draft(self, domain: str) -> bool:
        """Whether the draft model should keep up with the domain's rows: it is in use, or was never tried.

        Where it is False, the draft has to read what it missed before a probe can use it.
        """
        return self._drafting.get(domain, True)

    def report(self, domain: str) -> PolicyReport:
        """State, choice, numbers and a reason for one domain."""
        counts = self.measuring.counters.get(domain, Counter())
        batch = self._last.get(domain)
        rows = len(batch.rows) if batch is not None else 0
        facts = Facts(domain, self._configured.get(domain), batch, self.gains.veto(domain, rows, self._clock),
                      self.gains.gain(domain, rows), counts["switches"], counts["probes"],
                      counts["baselines"])  # fmt: skip
        return make_report(facts, self.costs, self.acceptance)

    def _remember(self, batch: Batch) -> None:
        """For reports. A request's last tokens leave no room to propose; that says nothing of its domain."""
        plan = batch.plan
        if plan is None:
            return
        for row in batch.rows:
            room = row.setting != "auto" or max(row.offers.values(), default=0) >= ROOM
            if room or row.domain not in self._last:
                self._last[row.domain] = batch
        rows = zip(batch.rows, plan.rows, strict=True)
        free = [
            (row, part) for row, part in rows if row.setting == "auto" and row.offers.get(DRAFT, 0) >= ROOM
        ]
        self._drafting.update((row.domain, False) for row, _ in free)
        self._drafting.update((row.domain, True) for row, part in free if part.proposer == DRAFT)

    def _decide(self, batch: Batch) -> Plan:
        mode = self._modes.get(batch.composition)
        fresh = mode is None or self._clock - mode.looked_at >= self.settings.refresh_rounds
        if mode is None or fresh:
            mode = self._look(batch)
        batch.mode = mode
        free = [
            b for b, row in enumerate(batch.rows)
            if row.setting == "auto" and batch.groups[b] not in mode.vetoed
        ]  # fmt: skip
        instead = self.measuring.instead(batch, mode, fresh, self._clock, free)
        return instead or Plan(batch.apply(mode.choice), "decided", mode.rate, mode.rate / mode.plain)

    def _look(self, batch: Batch) -> Mode:
        """Decide what to do with a composition, or whether to stay with it."""
        vetoed = [g for g in range(len(batch.kinds)) if self._vetoed(batch, g)]
        groups = [
            group(kind, count, self.acceptance, g in vetoed)
            for g, (kind, (_, count)) in enumerate(zip(batch.kinds, batch.composition, strict=True))
        ]
        mode, changed = self._modes.settle(
            batch.composition, Workload(groups, self.costs), self._clock, vetoed
        )
        for domain in {batch.kinds[g].domain for g in changed}:
            self.measuring.count(domain, "switches")
        return mode

    def _vetoed(self, batch: Batch, g: int) -> bool:
        """Whether a group has to decode plainly; not before it may return to that."""
        if self.gains.veto(batch.kinds[g].domain, len(batch.rows), self._clock) is None:
            return False
        mode = self._modes.get(batch.composition)
        return mode is None or not mode.left(g, (None, 0), self._clock - self.settings.dwell_rounds)

    def _learn(self, row: RowView, proposer: str, decided: RowPlan, outcome: RowOutcome) -> None:
        rates = self.acceptance.rates(row.domain, proposer, row.temperature)
        planned = decided.k if proposer == DRAFT else outcome.proposed
        rates.observe(planned, outcome.proposed, outcome.tested, outcome.accepted)
        rates.last_round = self._clock
        if proposer == DRAFT and outcome.confidences:
            self.confidence.observe(
                row.domain, row.temperature, outcome.confidences, outcome.tested, outcome.accepted
            )

    def _measure(self, rows: Sequence[RowView], plan: Plan, tokens: int, seconds: float) -> None:
        """`seconds` at the speed of calibration."""
        if plan.kind == "probe":
            return
        plain = all(row.k == 0 for row in plan.rows)
        for domain in {row.domain for row in rows}:
            self.gains.observe(domain, len(rows), PLAIN if plain else SPECULATING, tokens, seconds)
            if not plain and self._clock % 8 == 0:
                self.gains.judge(domain, len(rows), self._clock)
