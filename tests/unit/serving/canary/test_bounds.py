"""Moments, assignment and bounds against plain calculations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from redraft_serving.canary.assignment import in_share, position
from redraft_serving.canary.moments import Moments, from_dict, merged, of_request, to_dict
from redraft_serving.canary.sequential import acceptance_difference, radius, slowdown


def arm(seed: int, n: int = 400, rate: float = 0.6, pace: float = 0.02) -> tuple[Moments, np.ndarray]:
    rng = np.random.default_rng(seed)
    emitted = rng.integers(20, 300, n)
    tested = (0.8 * emitted).astype(int)
    accepted = rng.binomial(tested, np.clip(rng.normal(rate, 0.1, n), 0, 1))
    seconds = emitted * pace * np.exp(rng.normal(0, 0.2, n))
    rows = np.stack([tested, accepted, emitted, seconds], axis=1)
    return merged(of_request(int(t), int(a), int(e), s) for t, a, e, s in rows), rows


def test_sums_over_workers_are_the_sums_over_requests() -> None:
    whole, rows = arm(1)
    parts = [of_request(int(t), int(a), int(e), s) for t, a, e, s in rows]
    halves = merged(parts[:150]) + merged(parts[150:])
    assert to_dict(halves) == pytest.approx(to_dict(whole))
    assert whole.requests == 400
    assert whole.acceptance_rate == pytest.approx(rows[:, 1].sum() / rows[:, 0].sum())
    assert whole.seconds_per_token == pytest.approx(rows[:, 3].sum() / rows[:, 2].sum())
    assert from_dict(to_dict(whole)) == whole


def test_what_is_no_evidence_counts_as_nothing() -> None:
    assert from_dict({"tested": math.nan, "accepted": -1.0, "other": 3.0}) == Moments()
    assert Moments().acceptance_rate is None
    assert Moments().seconds_per_token is None
    assert acceptance_difference(Moments(), Moments(), 0.01, 0.02) is None
    assert slowdown(of_request(0, 0, 5, 1.0), of_request(0, 0, 5, 1.0), 0.01, 0.02) is None


def test_the_variance_is_taken_between_requests() -> None:
    """Against the bootstrap over requests; one over tokens would be several times too small."""
    (new, new_rows), (old, old_rows) = arm(2), arm(3, rate=0.55, pace=0.021)
    rng = np.random.default_rng(0)

    def resampled(rows: np.ndarray) -> np.ndarray:
        return rows[rng.integers(0, len(rows), len(rows))].sum(0)

    draws = [(resampled(new_rows), resampled(old_rows)) for _ in range(2000)]
    rate = np.std([a[1] / a[0] - b[1] / b[0] for a, b in draws])
    time = np.std([math.log(a[3] / a[2]) - math.log(b[3] / b[2]) for a, b in draws])
    found = acceptance_difference(new, old, 0.01, 0.02)
    slower = slowdown(new, old, 0.01, 0.05)
    assert found is not None
    assert slower is not None
    assert found.high - found.estimate == pytest.approx(radius(rate**2, 0.01, 0.02), rel=0.1)
    half = (math.log1p(slower.high) - math.log1p(slower.low)) / 2
    assert half == pytest.approx(radius(time**2, 0.01, math.log1p(0.05)), rel=0.1)
    by_token = 0.24 / new.tested + 0.24 / old.tested
    assert rate**2 > 3 * by_token


def test_the_radius_is_that_of_a_normal_mixture_and_sharpest_at_the_margin() -> None:
    """Wider than a fixed sample's interval at every time, and never far from it where decisions fall."""
    fixed = 2.576
    widths = {share: radius((0.02 / share) ** 2, 0.01, 0.02) / (0.02 / share) for share in (1, 2, 3, 4, 6)}
    assert min(widths.values()) > fixed
    assert min(widths, key=lambda share: widths[share]) in (2, 3, 4)
    assert widths[3] < 1.4 * fixed
    assert radius(0.0, 0.01, 0.02) == 0.0


def covered(peeking: bool, error_rate: float = 0.05, runs: int = 300, n: int = 3000) -> float:
    """Share of walks whose bounds hold the truth at every look; without the mixture's width, how few do."""
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(runs):
        mean = np.cumsum(rng.normal(0, 1, n)) / np.arange(1, n + 1)
        times = np.arange(20, n, 10)
        width = [radius(1 / t, error_rate, 0.2) if peeking else 1.96 / math.sqrt(t) for t in times]
        held += bool(np.all(np.abs(mean[times - 1]) < width))
    return held / runs


def test_bounds_hold_at_all_looks_together() -> None:
    """300 walks, 298 looks each, at 5 %; a fixed sample's interval, looked at as often, fails this test.

    Truth 0.95: with 300 walks below 0.91 by chance in less than 1 of 500 tests.
    """
    assert covered(peeking=True) > 0.91
    assert covered(peeking=False) < 0.75


def test_a_requests_arm_is_fixed_and_the_share_is_met() -> None:
    """20,000 requests at 10 %: six standard deviations are 1.3 points."""
    names = [f"request-{i}" for i in range(20_000)]
    chosen = [in_share(name, "support", "canary-7", 0.1) for name in names]
    assert sum(chosen) / len(chosen) == pytest.approx(0.1, abs=0.013)
    assert chosen == [in_share(name, "support", "canary-7", 0.1) for name in names]
    both = sum(a and in_share(n, "support", "canary-8", 0.1) for a, n in zip(chosen, names, strict=True))
    assert both / len(names) == pytest.approx(0.01, abs=0.0045)
    assert position("x", "a", "b") != position("x", "b", "a")
    assert not any(in_share(name, "support", "canary-7", 0.0) for name in names[:100])
