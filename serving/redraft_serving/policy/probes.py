"""Which probe tells most about a proposer that is not in use, for what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redraft_serving.policy.acceptance import Acceptance
from redraft_serving.policy.choose import Choice
from redraft_serving.policy.types import DRAFT, RowView
from redraft_serving.policy.workload import Workload

DEPTHS = (1, 2, 3)
GUESSES = (1, 2, 4, 8)
FLOOR = 1e-3
"""Regret of a probe is at least this share of the round, even where it seems to gain."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows that try a proposer in a round that is otherwise as decided."""

    proposer: str
    members: tuple[int, ...]
    k: int
    regret: float
    """Modelled seconds lost against the decided round."""
    tokens: float
    """Expected tokens of the round, all rows together."""


def best_probe(
    rows: Sequence[RowView],
    members: Sequence[int],
    groups: Sequence[int],
    proposer: str,
    workload: Workload,
    choice: Choice,
    acceptance: Acceptance,
    catch_up: float,
) -> Probe:
    """Fewest seconds lost per tested token: over its length, and over all `members` or the one least behind.

    `groups[b]` is row b's group; `catch_up` seconds per token that the draft model has to read first.
    """
    nearest = min(members, key=lambda b: rows[b].behind)
    now, rate = workload.tokens(choice), workload.rate(choice)
    priced: list[tuple[float, Probe]] = []
    for chosen in {tuple(members), (nearest,)}:
        for k in _lengths(proposer, choice, min(rows[b].offers[proposer] for b in chosen)):
            tables = [_expected(acceptance, rows[b], proposer, k) for b in chosen]
            more = sum(t[k] for t in tables) - sum(workload.row_tokens(choice, groups[b]) for b in chosen)
            seconds = _seconds(workload, choice, proposer, k, len(chosen))
            if proposer == DRAFT:
                seconds += catch_up * sum(rows[b].behind for b in chosen)
            regret = max(FLOOR * seconds, seconds - (now + more) / rate)
            # Tests expected of k tokens: the first, and each next if all before it are accepted.
            tests = sum(t[k - 1] for t in tables)
            priced.append((regret / tests, Probe(proposer, chosen, k, regret, now + more)))
    return min(priced, key=lambda pair: pair[0])[1]


def _lengths(proposer: str, choice: Choice, offer: int) -> list[int]:
    if proposer == DRAFT and choice.depth:
        return [min(choice.depth, offer)]
    wanted = DEPTHS if proposer == DRAFT else GUESSES
    return [k for k in wanted if k <= offer] or [offer]


def _expected(acceptance: Acceptance, row: RowView, proposer: str, k: int) -> list[float]:
    return acceptance.rates(row.domain, proposer, row.temperature).expected(k)


def _seconds(workload: Workload, choice: Choice, proposer: str, k: int, members: int) -> float:
    drafting = workload.drafting(choice)
    if proposer == DRAFT:
        return workload.seconds(max(choice.depth, k), choice.guess, drafting + members)
    return workload.seconds(choice.depth, max(choice.guess, k), drafting)
