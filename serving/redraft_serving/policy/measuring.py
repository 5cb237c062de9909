"""Rounds that measure: probes of what is not in use, and plain rounds that keep the baseline honest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from redraft_serving.policy.acceptance import Acceptance, PositionRates
from redraft_serving.policy.batch import Batch, part
from redraft_serving.policy.choose import Choice
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.exploration import Exploration
from redraft_serving.policy.gains import Gains
from redraft_serving.policy.hysteresis import Mode
from redraft_serving.policy.kinds import PLAIN, group
from redraft_serving.policy.probes import FLOOR, Probe, best_probe
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.types import DRAFT, NGRAM, PREDICTION, Plan, RowPlan, RowView
from redraft_serving.policy.workload import Workload

SUSPICION = 1.0
"""Log likelihood ratio of a rise at which a probe is followed by another at once."""
GAP = 8
"""Fewest rounds between two routine probes of one class, or of one composition."""
DOUBT = 5
"""Times as many baselines are run where speculation measures slower than plain decoding."""
WORTH = 1.002
"""Hoped gain that is worth a look."""
LOOKS = 4
"""Choices that are looked at, most hoped first, until one is affordable."""


class Measuring:
    """Decides when a round measures something instead of doing what was decided."""

    def __init__(
        self, settings: PolicySettings, seed: int, acceptance: Acceptance, costs: CostTable, gains: Gains
    ) -> None:
        self._settings, self._acceptance, self._costs, self._gains = settings, acceptance, costs, gains
        self.purses = Exploration(settings.explore_share, seed)
        self.counters: dict[str, Counter[str]] = {}
        self._plain_at: dict[int, int] = {}
        self._suspicious = False
        self._expected, self._payers = 0.0, frozenset[str]()

    def instead(
        self, batch: Batch, mode: Mode, fresh: bool, clock: int, open_rows: Sequence[int]
    ) -> Plan | None:
        """A measuring round in place of the decided one, where one is due and affordable.

        `fresh`: the mode was just looked at. `open_rows`: those whose part the policy may choose.
        """
        if not (fresh or self._suspicious) or not open_rows or not self._costs.machine.calm:
            return None
        if mode.workload is None or mode.since == clock:
            return None  # A change of mind is carried out in the round in which it is made.
        rows = self._probe(batch, mode, mode.workload, clock, open_rows)
        if rows is None and fresh:
            rows = self._curiosity(batch, mode, mode.workload, clock)
        if rows is not None:
            return _plan(rows, "probe", mode)
        if fresh and self._baseline(batch, mode, mode.workload, clock):
            return _plan((PLAIN,) * len(batch.rows), "baseline", mode)
        return None

    def observe(self, rows: Sequence[RowView], plan: Plan, tokens: int, seconds: float, clock: int) -> None:
        """A round ended: fill the purses, and settle what a probe gave beyond or below expectation."""
        domains = [row.domain for row in rows]
        self.purses.earn(domains, seconds)
        if all(decided.k == 0 for decided in plan.rows):
            self._plain_at[len(rows)] = clock
        if plan.kind == "probe" and plan.tokens_per_second:
            self.purses.settle(self._payers, (self._expected - tokens) / plan.tokens_per_second)
            used = zip(rows, plan.rows, strict=True)
            self._suspicious = any(
                p.proposer is not None and self._rates(row, p.proposer).change.up > SUSPICION
                for row, p in used
            )

    def count(self, domain: str, what: str) -> None:
        """Add to a domain's counter."""
        self.counters.setdefault(domain, Counter())[what] += 1

    def _probe(
        self, batch: Batch, mode: Mode, workload: Workload, clock: int, open_rows: Sequence[int]
    ) -> tuple[RowPlan, ...] | None:
        """Try a proposer that is offered and not in use."""
        for proposer in (DRAFT, NGRAM, PREDICTION):
            members = [b for b in open_rows if self._untried(batch, mode, b, proposer, clock)]
            if not members:
                continue
            probe = best_probe(batch.rows, members, batch.groups, proposer, workload, mode.choice,
                               self._acceptance, self._costs.catch_up())  # fmt: skip
            if self._afford(batch, probe):
                rows = list(batch.apply(mode.choice))
                for b in probe.members:
                    rows[b] = part(proposer, probe.k)
                return tuple(rows)
        return None

    def _untried(self, batch: Batch, mode: Mode, b: int, proposer: str, clock: int) -> bool:
        """Whether a row could use a proposer, doesn't, and its class was not tested just now."""
        row = batch.rows[b]
        if row.offers.get(proposer, 0) <= 0 or mode.choice.proposers[batch.groups[b]] == proposer:
            return False
        rates = self._rates(row, proposer)
        return rates.change.up > SUSPICION or clock - rates.last_round >= GAP

    def _afford(self, batch: Batch, probe: Probe) -> bool:
        domains = {batch.rows[b].domain for b in probe.members}
        if not self.purses.affords(domains, probe.regret):
            return False
        suspect = any(self._rates(batch.rows[b], probe.proposer).change.up > SUSPICION for b in probe.members)
        if not suspect and not self.purses.due(domains, probe.proposer, probe.regret):
            return False
        self._pay(domains, probe.proposer, probe.regret, "probes")
        self._expected = probe.tokens
        return True

    def _curiosity(
        self, batch: Batch, mode: Mode, workload: Workload, clock: int
    ) -> tuple[RowPlan, ...] | None:
        """Try a choice that would be better if what is little known about it turned out well."""
        if clock - mode.curious_at < GAP:
            return None
        mode.curious_at = clock
        groups = [
            group(kind, count, self._acceptance, g in mode.vetoed, hoped=True)
            for g, (kind, (_, count)) in enumerate(zip(batch.kinds, batch.composition, strict=True))
        ]
        hoped = Workload(groups, self._costs, hoped=True)
        worth = WORTH * hoped.rate(mode.choice)
        better = sorted((option for option in hoped.options() if option[0] > worth), reverse=True)
        for option in better[:LOOKS]:
            choice = hoped.choice(option)
            tokens = workload.tokens(choice)
            seconds = workload.time(choice) + self._costs.catch_up() * _newly_behind(batch, mode, choice)
            regret = max(FLOOR * seconds, seconds - tokens / mode.rate)
            if choice not in (mode.choice, workload.plain) and self.purses.affords(batch.domains, regret):
                self._pay(set(batch.domains), "curiosity", regret, "probes")
                self._expected = tokens
                return batch.apply(choice)
        return None

    def _baseline(self, batch: Batch, mode: Mode, workload: Workload, clock: int) -> bool:
        rows, plain = len(batch.rows), workload.plain
        doubted = any((self._gains.gain(domain, rows) or 1.0) < 1.0 for domain in set(batch.domains))
        spacing = self._settings.baseline_rounds // (DOUBT if doubted else 1)
        if clock - self._plain_at.get(rows, 0) < spacing:
            return False
        if mode.choice == plain or any(g.fixed is not None for g in workload.groups):
            return False
        regret = max(0.0, workload.time(plain) - workload.tokens(plain) / mode.rate)
        if not self.purses.affords(batch.domains, regret):
            return False
        self._pay(set(batch.domains), "plain", regret, "baselines")
        return True

    def _pay(self, domains: Iterable[str], proposer: str, regret: float, what: str) -> None:
        self._payers = frozenset(domains)
        self.purses.pay(self._payers, proposer, regret)
        for domain in domains:
            self.count(domain, what)

    def _rates(self, row: RowView, proposer: str) -> PositionRates:
        return self._acceptance.rates(row.domain, proposer, row.temperature)


def _newly_behind(batch: Batch, mode: Mode, choice: Choice) -> int:
    """Tokens that the draft has to read for rows that would draft now and did not."""
    return sum(
        row.behind
        for row, g in zip(batch.rows, batch.groups, strict=True)
        if choice.proposers[g] == DRAFT and mode.choice.proposers[g] != DRAFT
    )


def _plan(rows: tuple[RowPlan, ...], kind: Literal["probe", "baseline"], mode: Mode) -> Plan:
    return Plan(rows, kind, mode.rate, mode.rate / mode.plain)
