"""The history of a worker: raw counts that never fall, thinned with age, and the rates between looks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from redraft_serving.engine.interface import CHALLENGER, DraftStatistics, EngineStatistics, RequestStatistics
from redraft_serving.overview.curves import IDLE_SECONDS, WINDOW_TOKENS, curves
from redraft_serving.overview.history import History, thinned
from redraft_serving.overview.times import DecodeTimes

DAY = 86_400


class CountingEngine:
    """Serves what the test sets; every `serve` adds to the counts of a version."""

    def __init__(self) -> None:
        self.drafts: dict[tuple[str, str], DraftStatistics] = {}
        self.busy = 0.0

    def swap(self, version: int | str, arm: Any = "champion", domain: str = "law") -> None:
        self.drafts[domain, arm] = draft(domain, version, 0, 0, arm)

    def serve(self, tested: int, accepted: int, arm: str = "champion", domain: str = "law") -> None:
        old = self.drafts[domain, arm]
        counts = (old.tested + tested, old.accepted + accepted)
        self.drafts[domain, arm] = draft(domain, old.version, *counts, old.arm)

    def statistics(self) -> EngineStatistics:
        drafts = tuple(self.drafts.values())
        seconds = {"draft": self.busy, "idle": 100.0}
        return EngineStatistics(0, 0, 0, 0, 0, 0, {}, (), (), 0, {}, {}, drafts, seconds)


def draft(domain: str, version: int | str, tested: int, accepted: int, arm: Any) -> DraftStatistics:
    rest = ((), (), None, None, 3, "speculating")
    return DraftStatistics(domain, version, 1, tested, tested, accepted, 2 * tested, *rest, arm=arm)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine() -> CountingEngine:
    made = CountingEngine()
    made.swap("base")
    return made


@pytest.fixture
def times() -> DecodeTimes:
    return DecodeTimes()


@pytest.fixture
def history(engine: CountingEngine, times: DecodeTimes, clock: Clock) -> History:
    return History(engine, times, clock)  # type: ignore[arg-type]


def curve(history: History, clock: Clock, domain: str = "law") -> dict[str, Any]:
    return curves(history.looks(), history.marks(domain), domain, clock.now, round(clock.now * 1000))


def test_counts_never_fall_over_swaps_and_back(
    engine: CountingEngine, history: History, clock: Clock
) -> None:
    """Counts of a version begin at zero when it serves again; the sums go on, and each swap is marked."""
    for version, tested in [(None, 100), (4, 50), (5, 30), (4, 20), (4, 5)]:
        if version is not None and version != engine.drafts["law", "champion"].version:
            engine.swap(version)
        engine.serve(tested, tested // 2)
        clock.now += 5
        history.look()
    found = curve(history, clock)
    assert found["tested"] == [100, 150, 180, 200, 205]
    assert found["accepted"] == [50, 75, 90, 100, 102]
    assert [(mark["version"], mark["before"], mark["time_ms"]) for mark in found["marks"]] == [
        (4, "base", 10_000),
        (5, 4, 15_000),
        (4, 5, 20_000),
    ]


def test_a_promoted_challenger_does_not_bring_its_trial_along(
    engine: CountingEngine, history: History, clock: Clock
) -> None:
    """What it was tested on as challenger belongs to the trial, not to the champion's curve."""
    engine.swap(7, CHALLENGER)
    engine.serve(1000, 1000, CHALLENGER)
    engine.serve(100, 50)
    history.look()
    engine.drafts["law", "champion"] = draft("law", 7, 1100, 1090, "champion")
    del engine.drafts["law", CHALLENGER]
    clock.now += 5
    history.look()
    assert curve(history, clock)["tested"] == [100, 200]
    assert curve(history, clock)["accepted"] == [50, 140]


def test_a_rate_never_mixes_two_versions(engine: CountingEngine, history: History, clock: Clock) -> None:
    """90 % before, 10 % after: every point is one of the two, from the first look after the swap on."""
    for version, accepted in ((1, 90), (2, 10)):
        engine.swap(version)
        for _ in range(10):
            engine.serve(100, accepted)
            clock.now += 5
            history.look()
    rates = curve(history, clock)["acceptance_rate"]
    assert rates[1:] == [0.9] * 9 + [0.1] * 10
    looks = history.looks()
    mixed = (looks[12].domains["law"].counts.accepted - looks[7].domains["law"].counts.accepted) / 500
    assert 0.1 < mixed < 0.9, "a window over the swap would show a draft that never served"


def test_a_rate_is_over_enough_tokens_and_no_more(
    engine: CountingEngine, history: History, clock: Clock
) -> None:
    """25 tokens a look: nothing at first, then all looks, then only the newest WINDOW_TOKENS of them."""
    history.look()
    for index in range(59):
        engine.serve(25, 25 if index >= 30 else 0)
        clock.now += 5
        history.look()
    rates = curve(history, clock)["acceptance_rate"]
    assert rates[:3] == [None, None, 0]
    assert rates[30] == 0
    assert 0 < rates[40] < 1
    assert rates[31 + WINDOW_TOKENS // 25 - 1] < 1
    assert rates[31 + WINDOW_TOKENS // 25 :] == [1.0] * (60 - 31 - WINDOW_TOKENS // 25)


def test_a_curve_ends_where_nothing_happens(engine: CountingEngine, history: History, clock: Clock) -> None:
    history.look()
    for _ in range(30):
        if clock.now < 50:
            engine.serve(100, 50)
        clock.now += 5
        history.look()
    rates = curve(history, clock)["acceptance_rate"]
    last = 10 + int(IDLE_SECONDS / 5)
    assert rates[last] == 0.5
    assert rates[last + 1 :] == [None] * (30 - last)


def test_time_per_token_is_that_of_finished_choices(
    engine: CountingEngine, history: History, clock: Clock, times: DecodeTimes
) -> None:
    """The first token of a choice comes with its prompt: 101 tokens in 2 s are 20 ms each."""
    history.look()
    times.add("law", RequestStatistics(emitted=101, decode_seconds=2.0))
    times.add("other", RequestStatistics(emitted=101, decode_seconds=9.0))
    clock.now += 5
    history.look()
    found = curve(history, clock)
    assert found["seconds_per_token"] == [None, 0.02]
    assert found["decoded_tokens"] == [0, 100]


def test_two_weeks_fit_in_some_hundred_looks(engine: CountingEngine, history: History, clock: Clock) -> None:
    """A look every 5 minutes for 15 days, then every 5 seconds for an hour."""
    for step, count in ((300, 15 * DAY // 300), (5, 720)):
        for _ in range(count):
            engine.serve(10, 5)
            clock.now += step
            history.look()
    looks = history.looks()
    assert 300 < len(looks) < 700
    assert clock.now - looks[0].at > 13 * DAY
    gaps = [after.at - before.at for before, after in itertools.pairwise(looks)]
    ages = [clock.now - look.at for look in looks]
    assert all(gap <= max(300, age / 15) + 300 for gap, age in zip(gaps, ages, strict=False))
    assert all(gap == 5 for gap in gaps[-40:]), "the last minutes stay as they were"
    assert looks[-1].domains["law"].counts.tested == engine.drafts["law", "champion"].tested


def test_thinning_keeps_the_newest_and_drops_the_oldest(history: History, clock: Clock) -> None:
    history.look()
    (first,) = history.looks()
    assert thinned([first], 10) == [first]
    assert thinned([first], 30 * DAY) == [first], "a worker that woke up shows its newest look"


def test_a_domain_that_comes_later_has_its_own_times(
    engine: CountingEngine, history: History, clock: Clock
) -> None:
    history.look()
    engine.swap("base", domain="new")
    clock.now += 5
    history.look()
    assert curve(history, clock, "new")["time_ms"] == [5000]
    assert curve(history, clock, "never")["time_ms"] == []
