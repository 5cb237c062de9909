"""One round's rows, sorted into groups, with the mode that decides about them."""

from __future__ import annotations

from collections.abc import Sequence

from redraft_serving.policy.choose import Choice
from redraft_serving.policy.hysteresis import Composition, Mode
from redraft_serving.policy.kinds import PLAIN, Kinds, fixed_part
from redraft_serving.policy.types import Plan, RowPlan, RowView

_PARTS: dict[tuple[str, int], RowPlan] = {}


class Batch:
    """The rows of a round and their groups; `plan` is what was decided about them in the end."""

    __slots__ = ("composition", "groups", "kinds", "mode", "plan", "rows")

    def __init__(self, rows: Sequence[RowView], kinds: Kinds) -> None:
        self.rows = rows
        numbers = [kinds.number(row, len(rows) == 1) for row in rows]
        counts: dict[int, int] = {}
        for number in numbers:
            counts[number] = counts.get(number, 0) + 1
        self.composition: Composition = tuple(sorted(counts.items()))
        self.kinds = [kinds[number] for number, _ in self.composition]
        places = {number: place for place, (number, _) in enumerate(self.composition)}
        self.groups = [places[number] for number in numbers]
        self.mode: Mode | None = None
        self.plan: Plan | None = None

    @property
    def domains(self) -> list[str]:
        """Of each row."""
        return [row.domain for row in self.rows]

    def apply(self, choice: Choice | None) -> tuple[RowPlan, ...]:
        """A choice, cut to what each row offers; without one, only rows with a fixed number speculate."""
        parts = [choice.part(g) for g in range(len(self.composition))] if choice is not None else []
        return tuple([_part(row, parts[g] if parts else (None, 0))
                      for row, g in zip(self.rows, self.groups, strict=True)])  # fmt: skip


def _part(row: RowView, chosen: tuple[str | None, int]) -> RowPlan:
    if row.setting != "auto":
        return fixed_part(row.offers, row.setting)
    proposer, k = chosen
    return part(proposer, min(k, row.offers.get(proposer, 0))) if proposer is not None else PLAIN


def part(proposer: str, k: int) -> RowPlan:
    """A row's part, each made once."""
    if k <= 0:
        return PLAIN
    found = _PARTS.get((proposer, k))
    if found is None:
        found = _PARTS[proposer, k] = RowPlan(proposer, k)
    return found
