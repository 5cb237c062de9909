"""Which depth, width and proposers give most expected tokens per second: exact over the choices of a round.

A round is decided by three things: how deep the draft model drafts (`depth` steps, paid by all who draft),
how many tokens the others may guess (`guess`: what widens the target's pass), and which groups of rows draft.
Within that, every row proposes as much as it can: tokens inside the width are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redraft_serving.policy.types import DRAFT


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a round that are alike."""

    count: int
    drafted: Sequence[float] = ()
    """Expected tokens of a row that may propose 0, 1, ... its offer of draft tokens. Empty: none offered."""
    guessed: Sequence[tuple[float, str | None]] = ((1.0, None),)
    """Expected tokens and proposer, by the tokens it may guess without the draft model; the last one holds
    beyond the end."""
    steps: Sequence[float] = ()
    """Expected draft steps by depth; fewer than the depth where drafting stops early."""
    fixed: tuple[str, int] | None = None
    """Proposer and number of tokens of rows that leave no choice; `guessed` then says what they give."""

    def guess(self, tokens: int) -> str | None:
        """Which proposer gives most of up to `tokens` guesses."""
        return self.guessed[min(tokens, len(self.guessed) - 1)][1]


@dataclass(frozen=True, slots=True)
class Choice:
    """A decided round. `proposers` by group; None decodes plainly."""

    depth: int
    guess: int
    proposers: tuple[str | None, ...]

    def part(self, group: int) -> tuple[str | None, int]:
        """What a group does: proposer and most tokens, offers aside. A guess fills the width there is."""
        proposer = self.proposers[group]
        if proposer is None:
            return None, 0
        return proposer, self.depth if proposer == DRAFT else max(self.depth, self.guess)


Option = tuple[float, int, int, int]
"""Tokens per second, depth, guess, and how many of the groups that gain most by drafting do draft."""
