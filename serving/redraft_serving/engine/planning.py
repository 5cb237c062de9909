"""From rows to what the policy sees, and from its plan to what a round does.

The policy can't fail a request: where it breaks, a round decodes plainly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from redraft_serving.engine.lookup import NgramIndex
from redraft_serving.engine.proposer import KeepDrafting, Proposer
from redraft_serving.engine.rows import Row
from redraft_serving.policy.types import (
    DRAFT,
    NGRAM,
    PREDICTION,
    Plan,
    PolicyReport,
    RoundTimes,
    RowOutcome,
    RowPlan,
    RowView,
    Setting,
)

log = logging.getLogger(__name__)


class Policy(Protocol):
    """Decides how far to speculate; `redraft_serving.policy.governor` is the one that serves."""

    def plan(self, rows: Sequence[RowView]) -> Plan:
        """Decide a round."""

    def observe(
        self, rows: Sequence[RowView], plan: Plan, times: RoundTimes, outcomes: Sequence[RowOutcome]
    ) -> None:
        """Learn from it."""

    def survival(self, domain: str, temperature: str, confidences: Sequence[float]) -> float:
        """Probability that all tokens of these confidences are accepted."""

    def keep_drafting(self, plan: Plan, step: int, survivals: Sequence[float]) -> bool:
        """True where another drafted token is worth its time."""

    def age(self, domain: str) -> None:
        """Another draft version serves: what is known of the domain's draft counts less."""

    def wants_draft(self, domain: str) -> bool:
        """True where the draft model should keep up with the domain's rows."""

    def report(self, domain: str) -> PolicyReport:
        """What it does for a domain."""


class Planner:
    """Asks the proposers what they can offer, and the policy what to take."""

    def __init__(
        self,
        policy: Policy,
        proposer: Proposer,
        setting_of: Callable[[Row], Setting],
        *,
        proposers: Sequence[str],
        most: int,
        max_len: int,
        gap: int,
    ) -> None:
        """`gap`: tokens that the draft may have to read before its first step without being left out."""
        self.policy, self.proposer, self.setting_of = policy, proposer, setting_of
        self.proposers, self.most, self.max_len, self.gap = proposers, most, max_len, gap

    def views(self, rows: Sequence[Row]) -> list[RowView]:
        """What the policy sees of each row. Guesses that need no model are made here, on the rows."""
        return [self._view(row) for row in rows]

    def plan(self, views: Sequence[RowView]) -> Plan:
        """The policy's plan; plain decoding where it fails."""
        try:
            return self.policy.plan(views)
        except Exception:
            log.exception("the speculation policy failed; this round decodes plainly")
            return Plan(tuple(RowPlan(None, 0) for _ in views), "decided", None)

    def keep(self, views: Sequence[RowView], plan: Plan) -> KeepDrafting | None:
        """Whether to go on drafting after each token; None where the plan's depth is fixed."""
        if plan.tokens_per_second is None or plan.kind != "decided":
            return None

        def worth(members: Sequence[int], confidences: Sequence[Sequence[float]]) -> bool:
            if any(views[b].setting != "auto" for b in members):
                return True
            try:
                return self._worth(views, plan, members, confidences)
            except Exception:
                log.exception("the speculation policy failed; drafting goes on to the planned depth")
                return True

        return worth

    def _worth(
        self,
        views: Sequence[RowView],
        plan: Plan,
        members: Sequence[int],
        confidences: Sequence[Sequence[float]],
    ) -> bool:
        survivals = [0.0] * len(views)
        for b, known in zip(members, confidences, strict=True):
            survivals[b] = self.policy.survival(views[b].domain, views[b].temperature, known)
        return self.policy.keep_drafting(plan, len(confidences[0]), survivals)

    def observe(
        self, views: Sequence[RowView], plan: Plan, times: RoundTimes, outcomes: Sequence[RowOutcome]
    ) -> None:
        """Tell the policy what a round gave and took."""
        try:
            self.policy.observe(views, plan, times, outcomes)
        except Exception:
            log.exception("the speculation policy could not learn from a round")

    def wants_draft(self, row: Row) -> bool:
        """True where the draft should read this row's prompt as it comes."""
        setting = self.setting_of(row)
        if DRAFT not in self.proposers:
            return False
        if setting == "auto":
            return self.policy.wants_draft(row.lane)
        return setting > 0

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Let the draft read one chunk of one row that it is wanted for and has fallen behind: it was off."""
        for row in rows:
            behind = len(row.tokens) - 2 - row.draft_length > self.gap
            if behind and self.wants_draft(row) and self.proposer.catch_up(row, self.gap):
                return

    def _view(self, row: Row) -> RowView:
        setting = self.setting_of(row)
        room = min(row.remaining, self.max_len - len(row.tokens)) - 1
        most = max(0, min(self.most if setting == "auto" else setting, room))
        offers = self._offers(row, most, setting) if most else {}
        behind = max(0, len(row.tokens) - 2 - row.draft_length) if DRAFT in offers else 0
        return RowView(row.lane, row.temperature_class, offers, setting, behind)

    def _offers(self, row: Row, most: int, setting: Setting) -> dict[str, int]:
        """A fixed number is about the draft, where there is one: nothing steps in for it."""
        offers = {}
        if DRAFT in self.proposers:
            offers[DRAFT] = self.proposer.offer(row, most, self.gap)
        row.guesses = {}
        if PREDICTION in self.proposers and row.prediction is not None:
            row.guesses[PREDICTION] = row.prediction.propose(most)
        if NGRAM in self.proposers and (setting == "auto" or DRAFT not in self.proposers):
            if row.ngrams is None:
                row.ngrams = NgramIndex(row.tokens)
            row.guesses[NGRAM] = row.ngrams.propose(most)
        offers.update({name: len(guess) for name, guess in row.guesses.items()})
        return {name: count for name, count in offers.items() if count}
