"""Periods and crontabs, by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from redraft_queue.clock import clock_of
from redraft_queue.settings import QueueSettings


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("schedule", "asked", "expected"),
    [
        (900.0, "2026-03-01T10:00:02", "2026-03-01T10:15:02"),
        (0.5, "2026-03-01T10:00:00", "2026-03-01T10:00:00.500"),
        ("*/30 * * * *", "2026-03-01T10:00:02", "2026-03-01T10:30:00"),
        ("0 3 * * *", "2026-03-01T03:00:00", "2026-03-02T03:00:00"),  # its own stroke is not the next one
        ("0 3 * * *", "2026-03-01T02:59:59.999", "2026-03-01T03:00:00"),
        ("0 3 * * *", "2026-12-31T03:00:05", "2027-01-01T03:00:00"),
        ("15 8-18/5 * * mon-fri", "2026-03-06T18:15:00", "2026-03-09T08:15:00"),  # over a weekend
        ("0 0 29 2 *", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 1 * sun", "2026-03-02T00:00:00", "2026-11-01T00:00:00"),  # day and weekday must match
        ("0 2 * * *", "2026-03-29T00:30:00", "2026-03-29T02:00:00"),  # UTC has no summer time
    ],
)
def test_the_next_stroke(schedule: float | str, asked: str, expected: str) -> None:
    assert clock_of(schedule).next_after(ms(asked)) == ms(expected)


def test_the_machines_time_zone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert clock_of("0 3 * * *").next_after(ms("2026-03-01T02:00:00")) == ms("2026-03-01T03:00:00")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("0 3 * *", "has 4 fields"),
        ("", "has 0 fields"),
        ("900", "has 1 fields"),
        ("61 * * * *", "61 > 59"),
        ("0 24 * * *", "24 > 23"),
        ("0 0 0 * *", "0 < 1"),
        ("0 0 * * 7", "7 > 6"),
        ("0 0 30 2 *", "never occurs"),
        ("mon * * * *", "the minute of 'mon"),
        ("*/0 * * * *", "the minute of"),
        ("*/5-7 * * * *", "the minute of"),  # Celery reads */5 and forgets the rest
        ("0 0 * * noday", "noday"),
        ("1,,2 * * * *", "the minute of"),
        (0.0, "is no period"),
        (-5.0, "is no period"),
        (float("nan"), "is no period"),
        (float("inf"), "is no period"),
    ],
)
def test_a_schedule_that_can_not_be_is_one_sentence(schedule: float | str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        clock_of(schedule)
    assert "\n" not in str(raised.value)


def test_settings_are_checked_at_the_start() -> None:
    settings = QueueSettings(schedules={"support": "0 3 * * *", "faq": 600})
    assert settings.schedules == {"support": "0 3 * * *", "faq": 600.0}
    for schedules, reason in (
        ({"support": "0 3"}, "domain support: '0 3' has 2"),
        ({"a/b": 5.0}, "is no name"),
    ):
        with pytest.raises(ValidationError, match=reason):
            QueueSettings(schedules=schedules)
