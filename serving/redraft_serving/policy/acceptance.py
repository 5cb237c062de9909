"""Acceptance by position, apart for each domain, proposer and temperature class.

Position j is the (j+1)-th proposed token. Its rate is conditional: accepted, given that all before it were.
Three counts per position tell apart what happened from what a plan may expect:

- `accepted / tested`: the rate of tokens that were really proposed.
- `accepted / reached`: counts also the rounds that stopped drafting early just before this position,
  although all before it was accepted. Drafting stops where the draft is unsure, so tested tokens are the easy
  ones; the product of the reached rates is exactly what a plan of that depth gives while the rule is at work.
- `went / wanted`: how often drafting went on to this position, which is what the plan then costs.
"""

from __future__ import annotations

from math import exp, log, sqrt

from redraft_serving.policy.changes import ChangeDetector
from redraft_serving.policy.settings import PolicySettings

SLOW = 4.0
"""Positions that are not tested forget this many times more slowly, and in the end are tried again."""
FEW = 200.0
"""Tested tokens under which a rate may still be hoped to be better."""

Class = tuple[str, str, str]
"""Domain, proposer, temperature class."""


class PositionRates:
    """Decayed counts of one class."""

    __slots__ = ("_decay", "_expected", "_prior", "_slow", "_weight", "accepted", "change", "last_round",
                 "reached", "tested", "wanted", "went")  # fmt: skip

    def __init__(self, settings: PolicySettings) -> None:
        self._decay = 0.5 ** (1.0 / settings.half_life_tokens)
        self._slow = log(self._decay) / SLOW
        self._prior, self._weight = settings.prior_acceptance, settings.prior_tokens
        self.change = ChangeDetector(settings.change_threshold)
        self.last_round = -1
        self._expected: list[float] = []
        self.accepted: list[float] = []
        self.tested: list[float] = []
        self.reached: list[float] = []
        self.wanted: list[float] = []
        self.went: list[float] = []

    def observe(self, planned: int, proposed: int, tested: int, accepted: int) -> None:
        """One row's round: `planned` tokens were allowed, `proposed` drafted, `tested` compared."""
        self._grow(planned)
        if tested:
            self._watch(accepted > 0)
        self._count(tested, accepted, tested + (accepted == proposed < planned))
        for j in range(min(planned, proposed + 1)):
            self.wanted[j] = self.wanted[j] * self._decay + 1.0
            self.went[j] = self.went[j] * self._decay + (j < proposed)
        self._expected = []

    def _count(self, tested: int, accepted: int, reached: int) -> None:
        slow = exp(self._slow * tested)
        for j in range(len(self.tested)):
            factor = self._decay if j < reached else slow
            self.accepted[j] = self.accepted[j] * factor + (j < accepted)
            self.tested[j] = self.tested[j] * factor + (j < tested)
            self.reached[j] = self.reached[j] * factor + (j < reached)

    def _watch(self, hit: bool) -> None:
        alarm = self.change.observe(hit, self.given(0))
        if alarm is not None:
            hits, tests = alarm
            self.age()
            # The observation that rang is among them; it is counted by the caller.
            self.accepted[0], self.tested[0] = float(hits - hit), float(tests - 1)
            self.reached[0] = self.tested[0]

    def age(self) -> None:
        """Let the counts weigh little: what comes now decides."""
        for j, reached in enumerate(self.reached):
            keep = min(1.0, 0.25 * self._weight / reached) if reached else 0.0
            for counts in (self.accepted, self.tested, self.reached):
                counts[j] *= keep
        self.change.reset()
        self._expected = []

    def given(self, position: int) -> float:
        """Rate of a token that is really proposed at a position."""
        rate = self._prior
        for j in range(min(position + 1, len(self.tested))):
            weight = self._weight if j else _faded(self._weight, self.tested[0])
            rate = (self.accepted[j] + weight * rate) / (self.tested[j] + weight)
        return rate

    def expected(self, depth: int) -> list[float]:
        """Expected tokens of a round that may propose 0, 1, ... `depth` tokens, the target's own included.

        1 + sum of products of the reached rates; with equal rates it is eq. 1 of Leviathan et al. 2023.
        """
        if len(self._expected) <= depth:
            self._grow(depth)
            self._expected = self._sums()
        return self._expected

    def hoped(self, depth: int) -> list[float]:
        """The same where rates of few counts turn out better than they look, by one standard deviation."""
        self._grow(depth)
        return self._sums(1.0)

    def _sums(self, hope: float = 0.0) -> list[float]:
        rate, product, total, sums = self._prior, 1.0, 1.0, [1.0]
        weight = _faded(self._weight, self.reached[0]) if self.reached else self._weight
        for accepted, reached in zip(self.accepted, self.reached, strict=True):
            rate = (accepted + weight * rate) / (reached + weight)
            weight = self._weight
            better = hope * sqrt(rate * (1.0 - rate) / (reached + self._weight)) if reached < FEW else 0.0
            product *= min(1.0, rate + better)
            total += product
            sums.append(total)
        return sums

    def steps(self, depth: int) -> list[float]:
        """Expected draft steps of a round that may propose 0, 1, ... `depth` tokens: fewer where it stops."""
        self._grow(depth)
        product, total, steps = 1.0, 0.0, [0.0]
        for went, wanted in zip(self.went[:depth], self.wanted[:depth], strict=True):
            product *= (went + self._weight) / (wanted + self._weight)
            total += product
            steps.append(total)
        return steps

    def _grow(self, depth: int) -> None:
        missing = depth - len(self.tested)
        if missing > 0:
            for counts in (self.accepted, self.tested, self.reached, self.wanted, self.went):
                counts.extend([0.0] * missing)


def _faded(weight: float, tested: float) -> float:
    """Of the prior: it fades as counts come in, or a draft that is off would look good for ever.

    The position before, which the others fall back to, is measured itself and keeps its weight.
    """
    return weight * weight / (weight + tested)


class Acceptance:
    """The rates of every class."""

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._classes: dict[Class, PositionRates] = {}

    def rates(self, domain: str, proposer: str, temperature: str) -> PositionRates:
        """Counts of one class, empty at first."""
        key = (domain, proposer, temperature)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = PositionRates(self._settings)
        return found

    def age(self, domain: str, proposer: str) -> None:
        """A proposer changed in a domain: its counts weigh little from now on."""
        for key, rates in self._classes.items():
            if key[:2] == (domain, proposer):
                rates.age()

    def by_position(self, domain: str) -> dict[str, tuple[float, ...]]:
        """Accepted / tested at each position, per proposer, all temperature classes together."""
        merged: dict[str, tuple[list[float], list[float]]] = {}
        # A copy, so that another thread may report while a new class appears.
        for (owner, proposer, _), rates in list(self._classes.items()):
            if owner == domain:
                accepted, tested = merged.setdefault(proposer, ([], []))
                _add(accepted, rates.accepted)
                _add(tested, rates.tested)
        return {name: _ratios(*counts) for name, counts in merged.items() if counts[1] and counts[1][0] > 0}


def _add(total: list[float], counts: list[float]) -> None:
    total.extend([0.0] * (len(counts) - len(total)))
    for j, count in enumerate(counts):
        total[j] += count


def _ratios(accepted: list[float], tested: list[float]) -> tuple[float, ...]:
    """Up to the first position without data."""
    known = next((j for j, count in enumerate(tested) if count < 1e-3), len(tested))
    return tuple(a / t for a, t in zip(accepted[:known], tested[:known], strict=True))
