"""An exact simulation of rounds: acceptance by position and times by shape are known, tokens are drawn.

Tokens per second are counted as expectations under the true tables, so that a ratio to the oracle's holds
only what the policy decided, not the luck of the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp
from random import Random
from types import SimpleNamespace

import pytest
from redraft_serving.policy.governor import Governor
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.types import DRAFT, Plan, RoundTimes, RowOutcome, RowView

Acceptances = Mapping[tuple[str, str], Sequence[float]]
"""(domain, proposer) -> true acceptance at each position."""
Rows = Sequence[RowView] | Callable[[int], Sequence[RowView]]


@dataclass(frozen=True)
class Costs:
    """A machine: seconds of verification by (rows, width), of a draft step by rows, and outside of both."""

    verify: Callable[[int, int], float]
    step: Callable[[int], float]
    rest: float = 0.0005

    def seconds(self, rows: int, width: int, steps: int, drafting: int) -> float:
        draft = steps * self.step(drafting) if drafting else 0.0
        return self.verify(rows, width) + draft + self.rest


def between(points: Mapping[int, float], x: int) -> float:
    """Linear between and beyond the points."""
    xs = sorted(points)
    right = next((x1 for x1 in xs[1:] if x <= x1), xs[-1])
    left = xs[xs.index(right) - 1]
    return points[left] + (x - left) / (right - left) * (points[right] - points[left])


def measured_cpu(rows: int, width: int) -> float:
    """Two cores: 33 ms a plain step, 34 to 42 for widths 2 to 9; 52, 55, ... 82 ms at 8 rows."""
    one = between({1: 0.033, 2: 0.034, 9: 0.042}, width)
    eight = between({1: 0.052, 2: 0.055, 5: 0.066, 9: 0.082}, width)
    return one + (rows - 1) / 7 * (eight - one)


MACHINES = {
    "cpu, draft step 4.5 ms": Costs(measured_cpu, lambda rows: 0.0045 * (1 + 0.05 * (rows - 1))),
    "cpu, draft step 11 ms": Costs(measured_cpu, lambda rows: 0.011 * (1 + 0.05 * (rows - 1))),
    "gpu, width nearly free": Costs(lambda rows, width: 0.01 + 0.00002 * rows * width, lambda _: 0.0015),
    "cpu, products jump at 4 tokens": Costs(
        lambda rows, width: (0.025 if width < 4 else 0.047) * (1 + 0.05 * (rows - 1)) + 0.001 * width,
        lambda _: 0.006,
    ),
}


def expected(rates: Sequence[float], k: int) -> float:
    """1 + sum of products of the first k rates."""
    product, total = 1.0, 1.0
    for rate in rates[:k]:
        product *= rate
        total += product
    return total


def oracle(costs: Costs, rates: Sequence[float], rows: int = 1) -> tuple[float, int]:
    """Best tokens per second over fixed K, and that K, for rows that are all alike."""
    return max(
        (rows * expected(rates, k) / costs.seconds(rows, 1 + k, k, rows if k else 0), k)
        for k in range(len(rates) + 1)
    )


@dataclass
class Tally:
    """What the rounds of a simulation gave, as expectations under the true tables."""

    tokens: float = 0.0
    seconds: float = 0.0
    choices: list[tuple[tuple[str | None, int], ...]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def decided(self, row: int = 0) -> list[tuple[int, tuple[str | None, int]]]:
        """(round, what was decided for a row); rounds that measure are left out."""
        return [(i, c[row]) for i, (c, kind) in enumerate(zip(self.choices, self.kinds, strict=True))
                if kind == "decided"]  # fmt: skip

    @property
    def last(self) -> tuple[tuple[str | None, int], ...]:
        """What was decided last, for each row."""
        return self.choices[self.decided()[-1][0]]

    def flaps(self, within: int = 50, row: int = 0) -> int:
        """Returns to a choice that was left less than `within` rounds before."""
        left: dict[tuple[str | None, int], int] = {}
        count, now = 0, None
        for i, choice in self.decided(row):
            if choice != now:
                if now is not None:
                    left[now] = i
                count += choice in left and i - left[choice] < within
                now = choice
        return count

    def switches(self, row: int = 0) -> int:
        """Changes of the decision."""
        decided = [choice for _, choice in self.decided(row)]
        return sum(a != b for a, b in pairwise(decided))


class Simulation:
    """Runs a policy over rows whose truth is known and may be changed at any time."""

    def __init__(
        self,
        costs: Costs,
        acceptances: Acceptances,
        *,
        seed: int = 0,
        noise: float = 0.0,
        outliers: float = 0.0,
        settings: PolicySettings | None = None,
        calibrated: bool = True,
    ) -> None:
        self.costs, self.acceptances = costs, dict(acceptances)
        self.random = Random(seed)
        self.noise, self.outliers, self.slow = noise, outliers, 1.0
        self.governor = Governor(settings or PolicySettings(), seed)
        if calibrated:
            self.governor.calibrate(self.calibration())

    def calibration(self) -> list[RoundTimes]:
        """A few shapes, as an engine would measure them at start: five times each."""
        shapes = [(rows, width) for rows in (1, 4, 8) for width in (1, 2, 5, 9)]
        verify = [RoundTimes(r, w, self._noisy(self.costs.verify(r, w))) for r, w in shapes * 5]
        steps = [
            RoundTimes(r, 0, 0.0, draft_rows=r, draft_steps=1, draft=self._noisy(self.costs.step(r)))
            for r in (1, 4, 8) * 5
        ]
        return verify + steps

    def run(self, rounds: int, rows: Rows) -> Tally:
        """Rounds with the same rows before each, or with those that `rows` gives for a round."""
        tally = Tally()
        for i in range(rounds):
            now = rows(i) if callable(rows) else rows
            plan = self.governor.plan(now)
            self.governor.observe(now, plan, *self._round(now, plan, tally))
        return tally

    def _round(
        self, rows: Sequence[RowView], plan: Plan, tally: Tally
    ) -> tuple[RoundTimes, list[RowOutcome]]:
        parts = [
            (self.acceptances[row.domain, part.proposer] if part.proposer else (), part.k)
            for row, part in zip(rows, plan.rows, strict=True)
        ]
        drafting = [part.k for part in plan.rows if part.proposer == DRAFT]
        width, steps = 1 + max(part.k for part in plan.rows), max(drafting, default=0)
        tally.tokens += sum(expected(rates, k) for rates, k in parts)
        tally.seconds += self.slow * self.costs.seconds(len(rows), width, steps, len(drafting))
        tally.choices.append(tuple((part.proposer, part.k) for part in plan.rows))
        tally.kinds.append(plan.kind)
        times = RoundTimes(
            rows=len(rows),
            width=width,
            verify=self._noisy(self.costs.verify(len(rows), width)),
            draft_rows=len(drafting),
            draft_steps=steps,
            draft=self._noisy(steps * self.costs.step(len(drafting))) if drafting else 0.0,
            rest=self._noisy(self.costs.rest),
        )
        return times, [self._outcome(rates, k) for rates, k in parts]

    def _outcome(self, rates: Sequence[float], k: int) -> RowOutcome:
        accepted = 0
        while accepted < k and self.random.random() < rates[accepted]:
            accepted += 1
        return RowOutcome(k, min(k, accepted + 1), accepted, accepted + 1)

    def _noisy(self, seconds: float) -> float:
        seconds *= self.slow
        if self.noise:
            seconds *= exp(self.random.gauss(0.0, self.noise))
        return seconds * 10.0 if self.outliers and self.random.random() < self.outliers else seconds


def level(rate: float, fall: float = 1.0) -> list[float]:
    """Acceptance at 8 positions, falling by a factor from each to the next."""
    return [rate * fall**j for j in range(8)]


def draft_rows(rows: int = 1, domain: str = "d", **offers: int) -> list[RowView]:
    """Greedy rows of one domain that offer 8 draft tokens, and perhaps others."""
    return [RowView(domain, "greedy", {DRAFT: 8, **offers})] * rows


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The simulation and what belongs to it."""
    return SimpleNamespace(
        Simulation=Simulation,
        Costs=Costs,
        machines=MACHINES,
        expected=expected,
        oracle=oracle,
        level=level,
        rows=draft_rows,
    )
