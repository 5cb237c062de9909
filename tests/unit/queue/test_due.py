"""Whether a round is due: tables, and a clock that is moved about."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from redraft_queue.clock import clock_of
from redraft_queue.due import (
    CLOCK,
    CLOCK_SLACK_MS,
    DROP,
    FAILED,
    RESEND_MS,
    SKIPPED,
    TOKENS,
    Acceptance,
    ScheduleState,
    Sight,
    decide,
)
from redraft_queue.settings import QueueSettings

HOUR = 3_600_000
NOW = 1_800_000_000_000
SETTINGS = QueueSettings(
    schedule_seconds=3600,
    new_tokens_trigger=50_000,
    min_new_tokens=20_000,
    max_backoff_seconds=12 * 3600,
    schedule_min_seconds=60,
)
STEADY = Acceptance(0.60, 0.60, 100_000)
FALLEN = Acceptance(0.50, 0.60, 100_000)


def verdict(state: dict[str, Any], settings: QueueSettings = SETTINGS, **sight: Any) -> str | None:
    """What asks for a round, half an hour after the last was asked for unless told otherwise."""
    known = {"asked_ms": NOW - HOUR // 2, "tokens_added": 100_000, "asked_tokens": 100_000, **state}
    seen = {"now_ms": NOW, "tokens": 100_000, **sight}
    clock = clock_of(settings.schedule_seconds)
    return decide(ScheduleState(**known), Sight(**seen), clock, settings).trigger


@pytest.mark.parametrize(
    ("state", "sight", "expected"),
    [
        ({}, {}, None),
        ({"asked_ms": NOW - HOUR}, {}, CLOCK),
        ({"asked_ms": NOW - HOUR + 1}, {}, None),
        ({"asked_ms": NOW - 100 * HOUR}, {}, CLOCK),  # however many strokes were missed: one
        # Waits double: 1, 2, 4, 8 hours, then the limit.
        ({"asked_ms": NOW - 2 * HOUR + 1, "rounds_without_gain": 1}, {}, None),
        ({"asked_ms": NOW - 2 * HOUR, "rounds_without_gain": 1}, {}, CLOCK),
        ({"asked_ms": NOW - 8 * HOUR + 1, "rounds_without_gain": 3}, {}, None),
        ({"asked_ms": NOW - 12 * HOUR, "rounds_without_gain": 4}, {}, CLOCK),
        ({"asked_ms": NOW - 12 * HOUR, "rounds_without_gain": 10**9}, {}, CLOCK),
        # New tokens.
        ({}, {"tokens": 149_999}, None),
        ({}, {"tokens": 150_000}, TOKENS),
        ({"asked_ms": NOW - 59_000}, {"tokens": 150_000}, None),
        ({"asked_ms": NOW - 60_000}, {"tokens": 150_000}, TOKENS),
        ({}, {"tokens": 150_000, "running": True}, None),
        ({}, {"tokens": 150_000, "trial": True}, None),
        ({"rounds_without_gain": 1}, {"tokens": 150_000}, None),  # the doubled wait is for these too
        ({"end": SKIPPED}, {"tokens": 150_000}, TOKENS),
        ({"end": FAILED}, {"tokens": 150_000}, None),  # the clock alone repeats what failed
        ({"asked_tokens": 150_000}, {"tokens": 150_000}, None),  # asked already, and nothing came since
        ({}, {"tokens": 49_999}, None),  # the counter was begun anew
        ({}, {"tokens": 50_000}, TOKENS),
        # The round that was asked for waits in the queue; after it ended, or with its stroke gone by, more.
        ({"round_id": "r1"}, {"tokens": 150_000}, None),
        ({"round_id": "r1", "ended_ms": NOW - HOUR}, {"tokens": 150_000}, None),
        ({"round_id": "r1", "ended_ms": NOW - HOUR // 4}, {"tokens": 150_000}, TOKENS),
        ({"round_id": "r1", "asked_ms": NOW - HOUR}, {"tokens": 150_000}, TOKENS),
        ({"round_id": "r1"}, {"tokens": 150_000, "acceptance": FALLEN}, None),
        # Falling acceptance.
        ({}, {"tokens": 120_000, "acceptance": FALLEN}, DROP),
        ({}, {"tokens": 120_000, "acceptance": STEADY}, None),
        ({}, {"tokens": 120_000, "acceptance": replace(FALLEN, short=0.551)}, None),
        ({}, {"tokens": 120_000, "acceptance": replace(FALLEN, tested=1_999)}, None),
        ({}, {"tokens": 119_999, "acceptance": FALLEN}, None),  # the round would be skipped
        ({"rounds_without_gain": 5}, {"tokens": 120_000, "acceptance": FALLEN}, DROP),
        ({"asked_ms": NOW - HOUR, "rounds_without_gain": 5}, {"acceptance": FALLEN}, CLOCK),
        ({}, {"tokens": 120_000, "acceptance": FALLEN, "trial": True}, None),
        ({}, {"tokens": 120_000, "acceptance": FALLEN, "running": True}, None),
        ({"asked_ms": NOW - HOUR}, {"running": True}, None),
        # A claim without a message.
        ({"asked_ms": NOW - RESEND_MS, "sent": False, "trigger": DROP}, {"running": True}, DROP),
        ({"asked_ms": NOW - RESEND_MS + 1, "sent": False}, {}, None),
    ],
)
def test_what_asks_for_a_round(state: dict[str, Any], sight: dict[str, Any], expected: str | None) -> None:
    assert verdict(state, **sight) == expected


def test_triggers_are_off_where_the_settings_say_so() -> None:
    off = SETTINGS.model_copy(update={"new_tokens_trigger": None, "drop_trigger": None})
    assert verdict({}, off, tokens=10**9, acceptance=FALLEN) is None
    low = SETTINGS.model_copy(update={"new_tokens_trigger": 1})
    assert verdict({}, low, tokens=119_999) is None  # a round on fewer than min_new_tokens is skipped
    assert verdict({}, low, tokens=120_000) == TOKENS


@pytest.mark.parametrize(
    ("rounds", "expected_days"),
    [(0, 1), (1, 2), (2, 4), (3, 7), (30, 7)],
)
def test_a_daily_crontab_skips_strokes_within_the_wait(rounds: int, expected_days: int) -> None:
    """Beat asks two seconds late, and the limit of a week is seven days, not eight."""
    settings = QueueSettings(max_backoff_seconds=7 * 86_400)
    asked = 1_772_334_002_000  # 2026-03-01T03:00:02Z
    state = ScheduleState(asked_ms=asked, rounds_without_gain=rounds)
    due = decide(state, Sight(asked + 1), clock_of("0 3 * * *"), settings).due_ms
    assert due == asked - 2_000 + expected_days * 86_400_000


def test_a_clock_with_gaps_beyond_the_limit_keeps_its_strokes() -> None:
    weekly = clock_of("0 3 * * sun")
    asked = 1_772_334_002_000  # a Sunday
    state = ScheduleState(asked_ms=asked, rounds_without_gain=9)
    due = decide(state, Sight(asked + 1), weekly, QueueSettings(max_backoff_seconds=86_400)).due_ms
    assert due == asked - 2_000 + 7 * 86_400_000


def test_a_missing_or_future_stamp_starts_the_wait_and_asks_for_nothing() -> None:
    clock = clock_of(3600.0)
    for asked_ms in (None, NOW + CLOCK_SLACK_MS + 1, NOW + 10**12):
        found = decide(ScheduleState(asked_ms=asked_ms), Sight(NOW, tokens=10**9), clock, SETTINGS)
        assert (found.trigger, found.restamp, found.due_ms) == (None, True, NOW + HOUR)
    found = decide(ScheduleState(asked_ms=NOW + CLOCK_SLACK_MS), Sight(NOW), clock, SETTINGS)
    assert not found.restamp


def rounds_asked(hours: int, jumps: dict[int, int], seed: int, clamp: bool = True) -> list[int]:
    """Minutes at which a clock that jumps (minute -> ms) has a round asked for each hour, of `hours`."""
    source = random.Random(seed)
    shift, state, asked = 0, ScheduleState(), []
    for minute in range(hours * 60):
        shift += jumps.get(minute, 0)
        now = NOW + minute * 60_000 + shift + source.randint(0, 500)
        found = decide(state, Sight(now), clock_of(3600.0), SETTINGS)
        if found.restamp and (clamp or state.asked_ms is None):
            state = replace(state, asked_ms=now)
        elif found.trigger:
            asked.append(minute)
            state = replace(state, asked_ms=now)
    return asked


def test_a_clock_that_is_stepped_is_neither_silent_nor_floods() -> None:
    """20 seeded days with three steps of up to ten days each way: a step costs at most one more hour without
    a round in real time, and asks for at most one more.
    """
    for seed in range(20):
        source = random.Random(seed)
        jumps = {source.randrange(60, 1380): source.randint(-10, 10) * 24 * HOUR for _ in range(3)}
        asked = rounds_asked(24, jumps, seed)
        for before, after in zip([0, *asked], [*asked, 1440], strict=True):
            steps = sum(before <= minute <= after for minute in jumps)
            assert after - before <= 62 * (1 + steps)
        assert 24 - 4 <= len(asked) <= 24 + 3
    back = {300: -10 * 24 * HOUR}
    assert len(rounds_asked(24, back, 0)) >= 22
    assert len(rounds_asked(24, back, 0, clamp=False)) <= 5  # the wrong variant is silent for ten days
