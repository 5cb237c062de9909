"""Poisson arrivals: seeded, and exponential."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from redraft_ops.bench.arrivals import poisson


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def distance(found: list[float], rate: float) -> float:
    """Kolmogorov-Smirnov distance of gaps from the exponential law."""
    ordered = sorted(found)
    laws = [1 - math.exp(-rate * gap) for gap in ordered]
    n = len(ordered)
    return max(max(law - i / n, (i + 1) / n - law) for i, law in enumerate(laws))


def test_times_rise_from_zero_and_depend_on_the_seed_alone() -> None:
    times = poisson(5.0, 100, seed=1)
    assert times[0] == 0.0
    assert times == sorted(times) == poisson(5.0, 100, seed=1)
    assert times != poisson(5.0, 100, seed=2)
    assert poisson(5.0, 0, seed=1) == []


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_gaps_are_exponential(rate: float) -> None:
    """Seeded; another seed would fail with a probability of 0.001 (Kolmogorov-Smirnov, 1.95 / sqrt n)."""
    found = gaps(poisson(rate, 4001, seed=3))
    assert distance(found, rate) < 1.95 / math.sqrt(4000)


def test_even_gaps_would_go_red() -> None:
    assert distance([0.2] * 4000, 5.0) > 0.5
