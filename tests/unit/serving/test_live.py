"""Moving averages of live acceptance, by hand."""

from __future__ import annotations

import random
import time

import pytest
from redraft_serving.engine.interface import CHALLENGER, CHAMPION, Arm, DraftStatistics
from redraft_serving.live import LiveAcceptance


def draft(
    tested: int, accepted: int, version: int = 1, domain: str = "law", arm: Arm = CHAMPION, rounds: int = 0
) -> DraftStatistics:
    return DraftStatistics(
        domain=domain,
        version=version,
        rounds=rounds or tested,
        proposed=tested,
        tested=tested,
        accepted=accepted,
        emitted=accepted,
        accepted_per_position=(),
        tested_per_position=(),
        checksum=None,
        adapter=None,
        num_speculative_tokens=4,
        state="fixed",
        arm=arm,
    )


def rates(live: LiveAcceptance, domain: str = "law") -> tuple[float, float, int]:
    found = live.view()[domain]
    return float(found["short"]), float(found["long"]), int(found["tested"])


def test_a_steady_rate_is_both_averages_from_the_first_token_on() -> None:
    live = LiveAcceptance()
    live.look([draft(0, 0)])
    assert live.view() == {}
    for tested in (10, 500, 40_000):
        live.look([draft(tested, tested * 6 // 10)])
        assert rates(live) == (pytest.approx(0.6), pytest.approx(0.6), tested)


def test_half_lives_are_tested_tokens() -> None:
    live = LiveAcceptance(1_000, 20_000)
    live.look([draft(1_000_000, 1_000_000)])
    live.look([draft(1_001_000, 1_000_000)])  # one short half-life of nothing but misses
    short, long, _ = rates(live)
    assert short == pytest.approx(0.5)
    assert long == pytest.approx(0.5 ** (1 / 20))


@pytest.mark.parametrize("looks", [1, 7, 100])
def test_how_often_one_looks_hardly_matters(looks: int) -> None:
    live = LiveAcceptance(1_000, 20_000)
    live.look([draft(100_000, 70_000)])
    for look in range(1, looks + 1):
        tested = 2_000 * look // looks
        live.look([draft(100_000 + tested, 70_000 + tested // 2)])
    short, long, tested = rates(live)
    assert short == pytest.approx(0.55, abs=0.002)
    assert long == pytest.approx(0.5 + 0.2 * 0.5**0.1, abs=0.002)
    assert tested == 102_000


def test_counters_that_begin_anew_at_a_swap_are_no_fall() -> None:
    live = LiveAcceptance()
    live.look([draft(5_000, 3_000, version=1)])
    live.look([draft(200, 120, version=2)])
    live.look([draft(300, 180, version=2)])
    live.look([draft(100, 60, version=1)])  # the version before, back again
    assert rates(live) == (pytest.approx(0.6), pytest.approx(0.6), 5_400)
    live.look([draft(50, 30, version=1)])  # the same version once more
    assert rates(live)[2] == 5_450


def test_only_the_champions_arm_counts_and_domains_are_apart() -> None:
    live = LiveAcceptance()
    live.look([draft(1_000, 600), draft(1_000, 10, version=9, arm=CHALLENGER), draft(100, 90, domain="faq")])
    live.look([draft(1_000, 600), draft(5_000, 50, version=9, arm=CHALLENGER), draft(100, 90, domain="faq")])
    assert rates(live)[0] == pytest.approx(0.6)
    assert rates(live, "faq") == (pytest.approx(0.9), pytest.approx(0.9), 100)


def test_how_long_nothing_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    live, now = LiveAcceptance(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    live.look([draft(100, 60)])
    now = 160.0
    live.look([draft(100, 60)])
    assert live.view()["law"]["idle_seconds"] == 60.0
    live.look([draft(101, 61)])
    assert live.view()["law"]["idle_seconds"] == 0.0


SHORT, LONG = (16, 240), (200, 800)
"""Tested tokens of a request."""


def falls(
    before: float,
    after: float,
    lengths: tuple[int, int],
    seed: int,
    live: LiveAcceptance,
    trigger: float = 0.05,
) -> bool:
    """Whether 200,000 tokens at one rate and 40,000 at another ever part the averages by `trigger`.

    Tokens come in requests, whose own rates spread by 14 points: as in the simulations of canary and watch.
    """
    source, seen, accepted = random.Random(seed), 0, 0
    while seen < 240_000:
        tested = source.randint(*lengths)
        rate = source.gauss(before if seen < 200_000 else after, 0.14)
        seen += tested
        accepted += round(tested * min(1.0, max(0.0, rate)))
        live.look([draft(seen, accepted)])
        short, long, total = rates(live)
        if total >= 2_000 and long - short >= trigger:
            return True
    return False


@pytest.mark.parametrize(("lengths", "most"), [(SHORT, 1), (LONG, 5)])
def test_a_fall_of_ten_points_shows_and_chance_hardly_ever_does(lengths: tuple[int, int], most: int) -> None:
    """Where answers are long a few of them are a half-life, so that chance makes a fall in 5 % of runs of
    200,000 tokens; more than 5 of 20 then see one with a probability below 0.001. With a half-life of 4,000
    tokens chance makes one in 85 % of them, and the doubled wait between rounds would end again and again.
    """
    assert sum(falls(0.3, 0.3, lengths, seed, LiveAcceptance()) for seed in range(20)) <= most
    assert all(falls(0.6, 0.5, lengths, seed, LiveAcceptance()) for seed in range(20))
    if lengths == LONG:
        hasty = [falls(0.3, 0.3, lengths, seed, LiveAcceptance(4_000, 50_000)) for seed in range(20)]
        assert sum(hasty) >= 10
