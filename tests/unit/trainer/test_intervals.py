"""Intervals of ratios of sums: known quantiles, a hand-checked case, coverage on clustered data."""

import math

import numpy as np
import pytest
from redraft_trainer.intervals import ratio_interval, student_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 6.3138), (2, 2.9200), (3, 2.3534), (5, 2.0150), (10, 1.8125), (29, 1.6991), (100, 1.6602)],
)
def test_student_quantile_matches_the_printed_tables(freedom: float, expected: float) -> None:
    assert student_quantile(0.95, freedom) == pytest.approx(expected, abs=2e-4)


def test_student_quantile_approaches_the_normal_one() -> None:
    assert student_quantile(0.975, 1e6) == pytest.approx(1.959966, abs=1e-5)


@pytest.mark.parametrize("freedom", [1.0, 1.5, 1.99, 2.0, 2.7, 3.0, 3.5, 8.0, 30.0])
def test_fewer_clusters_never_narrow_the_quantile(freedom: float) -> None:
    assert student_quantile(0.95, freedom) >= student_quantile(0.95, freedom + 0.5)


def test_equal_weights_give_the_ordinary_t_interval() -> None:
    values = [1.0, 2.0, 3.0, 6.0]
    found = ratio_interval(values, [1.0] * 4, tail=0.05)
    reach = student_quantile(0.95, 3) * float(np.std(values, ddof=1)) / 2.0
    assert found.estimate == pytest.approx(3.0)
    assert found.low == pytest.approx(3.0 - reach)
    assert found.high == pytest.approx(3.0 + reach)


def test_the_estimate_is_a_ratio_of_sums_not_an_average_of_averages() -> None:
    assert ratio_interval([9.0, 0.0], [9.0, 1.0], tail=0.05).estimate == pytest.approx(0.9)


@pytest.mark.parametrize(("values", "weights"), [([0.5], [1.0]), ([3.0, 0.0], [5.0, 0.0])])
def test_one_cluster_says_nothing(values: list[float], weights: list[float]) -> None:
    found = ratio_interval(values, weights, tail=0.05)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_no_clusters_say_nothing() -> None:
    found = ratio_interval([], [], tail=0.05)
    assert math.isnan(found.estimate)
    assert found.low == -math.inf


def test_two_sided_interval_covers_the_truth_as_often_as_it_says() -> None:
    """False alarm: 2,000 seeded trials, expected coverage 0.95, bound 5 standard deviations below (6e-7)."""
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(2000):
        weights = np.ceil(rng.lognormal(3.5, 0.8, 60))
        values = weights * rng.normal(0.6, 0.15, 60)
        found = ratio_interval(values.tolist(), weights.tolist(), tail=0.025)
        covered += found.low <= 0.6 <= found.high
    assert covered / 2000 > 0.95 - 5 * math.sqrt(0.95 * 0.05 / 2000)
