"""Rates of right and wrong decisions on simulated traffic; docs/canary.md states the same numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from redraft_serving.canary import sequential
from redraft_serving.canary.moments import Moments
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.verdict import judge_watch

from .simulation import End, canary, requests, watch

SETTINGS = CanarySettings()
RUNS = 200
ALLOWED = 8
"""Wrong decisions that 200 runs at a rate of 1 % exceed with a chance of 1 in 4,700 (binomial tail)."""
ALLOWED_AT_MARGIN = 5
"""The same for 100 runs at 1 %: 1 in 1,900."""


def many(difference: float, slower: float = 1.0, n: int = 16_000, runs: int = RUNS) -> list[End]:
    return [canary(seed, difference, slower, SETTINGS, n) for seed in range(runs)]


def outcomes(ends: list[End]) -> Counter[str]:
    return Counter(end.outcome for end in ends)


def test_an_equal_challenger_is_rarely_rejected() -> None:
    """At most error_rate = 1 %; half of them are promoted within 15,000 requests (1,500 of its own)."""
    ends = many(0.0)
    assert outcomes(ends)["reject"] <= ALLOWED
    assert np.median([end.requests for end in ends]) <= 15_000


@pytest.mark.parametrize(("difference", "slower"), [(-0.02, 0.97), (0.0, 1.05)])
def test_one_at_a_margin_is_rarely_promoted(difference: float, slower: float) -> None:
    """At most error_rate = 1 %. The first is as fast as the champion in spite of what it loses."""
    assert outcomes(many(difference, slower, 12_000, 100))["promote"] <= ALLOWED_AT_MARGIN


def test_one_five_points_worse_never_becomes_champion() -> None:
    """200 runs; the median is rejected within 2,500 requests, the slowest within 8,000."""
    ends = many(-0.05, n=10_000)
    assert outcomes(ends) == {"reject": RUNS}
    assert np.median([end.requests for end in ends]) <= 2_500
    assert max(end.requests for end in ends) <= 8_000


def test_one_five_points_better_is_promoted_soon() -> None:
    """The median within 2,000 requests, the slowest within 7,000."""
    ends = many(0.05, n=10_000)
    assert outcomes(ends) == {"promote": RUNS}
    assert np.median([end.requests for end in ends]) <= 2_000
    assert max(end.requests for end in ends) <= 7_000


def test_an_interval_for_one_look_would_reject_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong variant: bounds for a fixed sample, looked at all the time, fail the first test's limit."""
    monkeypatch.setattr(sequential, "radius", lambda variance, *_: 2.576 * variance**0.5)
    ends = many(0.0, n=10_000, runs=100)
    assert outcomes(ends)["reject"] > ALLOWED


def steady(value: float, n: int) -> np.ndarray:
    return np.full(n, value)


def test_a_champion_that_decays_is_rolled_back() -> None:
    """Five points better until request 7,000, ten points worse than the version before after it.

    Rolled back in every of 100 runs; counted from the decay: the median within 4,000 requests, the slowest
    within 9,000 (that is one window more, where the old evidence still hid it at the end of its own).
    """
    decay = 7_000
    champion = np.concatenate([steady(0.70, decay), steady(0.55, 17_000)])
    ends = [watch(seed, champion, steady(0.65, 24_000), SETTINGS) for seed in range(100)]
    assert outcomes(ends) == {"rollback": 100}
    after = [end.requests - decay for end in ends]
    assert min(after) > 0
    assert np.median(after) <= 4_000
    assert max(after) <= 9_000


def test_a_champion_that_was_bad_from_the_start_is_rolled_back() -> None:
    """20 % slower with equal acceptance: the median within 4,000 requests, the slowest within 16,000."""
    n = 24_000
    ends = [watch(seed, steady(0.65, n), steady(0.65, n), SETTINGS, slower=1.2) for seed in range(50)]
    assert outcomes(ends) == {"rollback": 50}
    assert np.median([end.requests for end in ends]) <= 4_000
    assert max(end.requests for end in ends) <= 16_000


@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_drift_that_hits_both_arms_rolls_nothing_back(gain: float) -> None:
    """Acceptance falls by 20 points half-way, for both versions. Four windows of 1 % each, 50 runs."""
    n = 24_000
    previous = np.concatenate([steady(0.65, n // 2), steady(0.45, n // 2)])
    ends = [watch(seed, previous + gain, previous, SETTINGS) for seed in range(50)]
    assert outcomes(ends) == {"continue": 50}


def test_a_watch_without_a_control_arm_would_roll_back() -> None:
    """The wrong variant: the champion against what the version before did earlier, through the same drift."""
    rng = np.random.default_rng(0)
    earlier = Moments(*requests(rng, steady(0.65, 2_000), steady(1.0, 2_000)).sum(0))
    later = Moments(*requests(rng, steady(0.50, 2_000), steady(1.0, 2_000)).sum(0))
    assert judge_watch(later, earlier, SETTINGS).outcome == "rollback"


def test_one_at_the_watchs_margin_is_rarely_rolled_back() -> None:
    """At most watch_error_rate a window: 60 runs of four windows, beyond 9 in 1 of 4,000 tests."""
    n = 24_000
    ends = [watch(seed, steady(0.63, n), steady(0.65, n), SETTINGS) for seed in range(60)]
    assert outcomes(ends)["rollback"] <= 9
