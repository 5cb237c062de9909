"""Stops drafting where the next token is not worth its time.

Lossless: the rule looks at confidences, which are known before a token is drawn, and what was drawn is kept
and verified. Dropping a token for its own low probability would change the output law.
"""

from __future__ import annotations

from collections.abc import Sequence

from redraft_serving.policy.acceptance import Acceptance
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.types import DRAFT, Plan, RowView


def worth_going_on(
    rows: Sequence[RowView],
    plan: Plan,
    step: int,
    survivals: Sequence[float],
    acceptance: Acceptance,
    costs: CostTable,
) -> bool:
    """Whether one more draft step, after `step` of them, gives tokens at least at the plan's rate."""
    going = [b for b, part in enumerate(plan.rows) if part.proposer == DRAFT and part.k > step]
    if not going or plan.tokens_per_second is None:
        return bool(going)
    tokens = sum(
        survivals[b] * acceptance.rates(rows[b].domain, DRAFT, rows[b].temperature).given(step) for b in going
    )
    return tokens >= plan.tokens_per_second * _marginal(plan, step, len(going), costs)


def _marginal(plan: Plan, step: int, drafting: int, costs: CostTable) -> float:
    """Seconds of the step and, where nothing else makes the target's pass so wide, of a wider pass."""
    rows = len(plan.rows)
    guessed = max((part.k for part in plan.rows if part.proposer != DRAFT), default=0)
    seconds = costs.draft(drafting, step + 1) - costs.draft(drafting, step)
    if step + 1 > guessed:
        seconds += max(0.0, costs.verify(rows, step + 2) - costs.verify(rows, step + 1))
    return seconds
