"""One batch, priced: every choice with its expected tokens per second, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence

from redraft_serving.policy.choose import Choice, Group, Option
from redraft_serving.policy.costs import CostTable
from redraft_serving.policy.types import DRAFT


class Workload:
    """One batch with what its rows may expect and what its shapes cost."""

    def __init__(self, groups: Sequence[Group], costs: CostTable, hoped: bool = False) -> None:
        self.groups, self._costs = groups, costs
        self._hoped = hoped
        self.rows = sum(group.count for group in groups)
        self._verify: dict[int, float] = {}
        self._draft: dict[tuple[float, int], float] = {}
        self._rest = (costs.rest(self.rows, False), costs.rest(self.rows, True))
        fixed = [(g.count, *g.fixed) for g in groups if g.fixed is not None]
        self._fixed_rows = sum(count for count, proposer, _ in fixed if proposer == DRAFT)
        self._fixed_depth = max((k for _, proposer, k in fixed if proposer == DRAFT), default=0)
        self._fixed_guess = max((k for _, proposer, k in fixed if proposer != DRAFT), default=0)
        self.depth = max((len(g.drafted) - 1 for g in groups if g.drafted), default=0)
        self.guess = max((len(g.guessed) - 1 for g in groups if g.fixed is None), default=0)
        self._drafted = [_to(list(g.drafted), self.depth) for g in groups]
        self._guessed = [_to([tokens for tokens, _ in g.guessed], self.guess) for g in groups]
        self._steps = _longest([_to(list(g.steps), self.depth) for g in groups if g.steps], self.depth)

    def options(self) -> list[Option]:
        """Every choice worth a look; guesses inside the width are free, so only the widest of them is."""
        found: list[Option] = []
        for depth in range(self.depth + 1):
            free = max(depth, self._fixed_depth, self._fixed_guess)
            for guess in range(min(free, self.guess), self.guess + 1):
                self._price(depth, guess, found)
        return found

    def _price(self, depth: int, guess: int, found: list[Option]) -> None:
        """Add the choices of one depth and guess: the 1, 2, ... groups that gain most by drafting do."""
        tokens = sum([g.count * line[guess] for g, line in zip(self.groups, self._guessed, strict=True)])
        if not depth:
            found.append((tokens / self.seconds(0, guess, 0), 0, guess, 0))
            return
        steps, rows = self._depth(depth), self._fixed_rows
        fixed = self._pass(steps, guess)
        for taken, (gain, group) in enumerate(self._ranked(depth, guess), start=1):
            count = self.groups[group].count
            rows += count
            tokens += gain * count
            found.append((tokens / (fixed + self._drafting(steps, rows)), depth, guess, taken))

    def _ranked(self, depth: int, guess: int) -> list[tuple[float, int]]:
        """Groups that gain tokens by drafting instead, most first."""
        ranked = [
            (drafted[depth] - guessed[guess], g)
            for g, (drafted, guessed) in enumerate(zip(self._drafted, self._guessed, strict=True))
            if drafted and drafted[depth] > guessed[guess]
        ]
        if len(ranked) > 1:
            ranked.sort(reverse=True)
        return ranked

    def choice(self, option: Option) -> Choice:
        """An option, spelt out in one form: no depth without a drafting group, no unused guess."""
        _, depth, guess, taken = option
        drafting = {g for _, g in self._ranked(depth, guess)[:taken]} if depth else set()
        proposers = tuple(
            DRAFT if g in drafting else group.fixed[0] if group.fixed else group.guess(guess)
            for g, group in enumerate(self.groups)
        )
        guesses = any(
            p not in (None, DRAFT) and g.fixed is None for p, g in zip(proposers, self.groups, strict=True)
        )
        return Choice(depth if drafting else 0, guess if guesses else 0, proposers)

    def seconds(self, depth: int, guess: int, drafting: int) -> float:
        """Expected time of a round in which `drafting` rows without a fixed number draft up to `depth`."""
        steps, rows = self._depth(depth), drafting + self._fixed_rows
        return self._pass(steps, guess) + (self._drafting(steps, rows) if rows else 0.0)

    def _depth(self, depth: int) -> float:
        """Expected draft steps."""
        steps = self._steps[depth] if depth <= self.depth else float(depth)
        return max(steps, float(self._fixed_depth))

    def _pass(self, steps: float, guess: int) -> float:
        """Seconds of the target's pass and of the rest."""
        proposed = max(steps, guess, self._fixed_guess)
        whole = int(proposed)
        seconds = self._verified(whole)
        if whole != proposed:
            # Where drafting may stop early, the expected number lies between two.
            seconds += (proposed - whole) * (self._verified(whole + 1) - seconds)
        return seconds + self._rest[proposed > 0]

    def _verified(self, proposed: int) -> float:
        found = self._verify.get(proposed)
        if found is None:
            found = self._verify[proposed] = self._costs.verify(self.rows, 1 + proposed, self._hoped)
        return found

    def _drafting(self, steps: float, rows: int) -> float:
        """Seconds of the draft's steps."""
        found = self._draft.get((steps, rows))
        if found is None:
            found = self._draft[steps, rows] = self._costs.draft(rows, steps)
        return found

    def tokens(self, choice: Choice) -> float:
        """Expected tokens of a round, all rows together."""
        return sum(group.count * self.row_tokens(choice, g) for g, group in enumerate(self.groups))

    def row_tokens(self, choice: Choice, group: int) -> float:
        """Expected tokens of one row of a group."""
        if self._drafts(choice, group):
            return self._drafted[group][choice.depth]
        if choice.proposers[group] is None:
            return 1.0
        return self._guessed[group][min(self.guess, max(choice.depth, choice.guess))]

    def time(self, choice: Choice) -> float:
        """Expected seconds of a round."""
        return self.seconds(choice.depth, choice.guess, self.drafting(choice))

    def rate(self, choice: Choice) -> float:
        """Expected tokens per second."""
        return self.tokens(choice) / self.time(choice)

    def drafting(self, choice: Choice) -> int:
        """Rows that draft by choice."""
        return sum(g.count for i, g in enumerate(self.groups) if self._drafts(choice, i))

    def _drafts(self, choice: Choice, group: int) -> bool:
        return choice.proposers[group] == DRAFT and self.groups[group].fixed is None

    @property
    def plain(self) -> Choice:
        """No speculation but that which rows ask for."""
        return Choice(0, 0, tuple(g.fixed[0] if g.fixed else None for g in self.groups))


def _to(line: list[float], depth: int) -> list[float]:
    """What holds at a row's own limit holds beyond it."""
    return line[: depth + 1] + line[-1:] * (depth + 1 - len(line))


def _longest(lines: Sequence[Sequence[float]], depth: int) -> list[float]:
    """Steps by depth: as many as the row that goes on longest; without any, one per token."""
    return (
        [max(column) for column in zip(*lines, strict=True)]
        if lines
        else [float(d) for d in range(depth + 1)]
    )
