"""What measuring on purpose may cost: a purse per domain, filled by a share of the time that its rounds take.

A probe speculates where the decision does not, a baseline decodes plainly where it does. Each pays its
regret, the modelled time that it loses against the decided round, before it runs; what is not in the purse is
not spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

RESERVE = 6.0
"""Probes that a purse keeps back: evidence of a change is followed up at once."""
HORIZON = 1000.0
"""Rounds whose share a purse holds at most."""


class Purse:
    """One domain's allowance."""

    __slots__ = ("balance", "earned", "spent_at")

    def __init__(self) -> None:
        self.balance = 0.0
        self.earned = 0.0
        self.spent_at: dict[str, float] = {}
        """`earned` when a proposer was last probed."""


class Exploration:
    """Says when a probe or a baseline is due and affordable."""

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._random = Random(seed)
        self._purses: dict[str, Purse] = {}
        self._jitter = 1.0
        self.spent = 0.0
        """Modelled seconds that probes and baselines cost so far."""

    def earn(self, domains: Sequence[str], seconds: float) -> None:
        """A round took `seconds`; each row's domain gets its part of the share."""
        part = self._share * seconds / max(1, len(domains))
        for domain in domains:
            purse = self._purse(domain)
            purse.earned += part
            purse.balance = min(purse.balance + part, HORIZON * self._share * seconds)

    def affords(self, domains: Iterable[str], regret: float) -> bool:
        """Whether the domains together can pay."""
        return sum(self._purse(domain).balance for domain in set(domains)) >= regret

    def due(self, domains: Iterable[str], proposer: str, regret: float) -> bool:
        """Whether a routine probe is due: half of the income is saved until the reserve is full."""
        purses = [self._purse(domain) for domain in set(domains)]
        full = sum(purse.balance for purse in purses) >= (RESERVE + 1.0) * regret
        waited = sum(purse.earned - purse.spent_at.get(proposer, 0.0) for purse in purses)
        return waited >= regret * self._jitter * (1.0 if full else 2.0)

    def pay(self, domains: Iterable[str], proposer: str, regret: float) -> None:
        """Take the regret from the purses, by what each holds."""
        purses = [self._purse(domain) for domain in set(domains)]
        total = sum(max(0.0, purse.balance) for purse in purses)
        for purse in purses:
            part = max(0.0, purse.balance) / total if total > 0 else 1.0 / len(purses)
            purse.balance -= regret * part
            purse.spent_at[proposer] = purse.earned
        self.spent += regret
        # Traffic may have a period; probes must not fall into step with it.
        self._jitter = self._random.uniform(0.6, 1.4)

    def settle(self, domains: Iterable[str], seconds: float) -> None:
        """What a measurement really cost beyond what was paid; negative where it gave more than expected."""
        owners = set(domains)
        for domain in owners:
            self._purse(domain).balance -= seconds / len(owners)
        self.spent += seconds

    def _purse(self, domain: str) -> Purse:
        found = self._purses.get(domain)
        if found is None:
            found = self._purses[domain] = Purse()
        return found
