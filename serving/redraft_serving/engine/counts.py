"""Raw counts of what rounds did. Rates are derived by readers; nothing here is averaged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Counts per round and per position. `per_position` lists grow to the largest K seen."""

    rounds: int = 0
    """Row rounds that proposed something."""
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    emitted: Counter[str] = field(default_factory=Counter)
    accepted_per_position: list[int] = field(default_factory=list)
    tested_per_position: list[int] = field(default_factory=list)

    def add_round(self, proposed: int, tested: int, accepted: int) -> None:
        """One row's round."""
        if not proposed:
            return
        self.rounds += 1
        self.proposed += proposed
        self.tested += tested
        self.accepted += accepted
        _add_run(self.tested_per_position, tested, proposed)
        _add_run(self.accepted_per_position, accepted, proposed)


def _add_run(counts: list[int], run: int, depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for position in range(run):
        counts[position] += 1


def tested_tokens(limit: int, accepted: int) -> int:
    """Drafted tokens that were compared: the accepted ones and, short of the end, the first miss."""
    return min(limit, accepted + 1)
