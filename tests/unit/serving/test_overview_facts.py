"""What the overview makes of versions and signs of life: rows for people, workers that lag or fell silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from redraft_models.registry import VersionInfo
from redraft_queue.heartbeat import SignOfLife
from redraft_serving.overview.rounds import moves, round_row
from redraft_serving.overview.workers import BEHIND_SECONDS, FORGET_SECONDS, Workers

TTL = 15.0
PLACE = ("serving", "a", 1)


def info(version: int, **tags: str) -> VersionInfo:
    return VersionInfo("law", version, "run", "READY", 1_700_000_000_000, "", tags)


def test_a_round_keeps_its_numbers_and_leaves_the_rest_unknown() -> None:
    row = round_row(
        info(
            3,
            decision="rejected",
            decision_reason="Too little.",
            gain="0.0123",
            gain_ci_low="-0.002",
            gain_ci_high="nan",
            heldout_tokens="18240",
            canary="failed",
            canary_requests="88",
        )
    )
    assert (row["version"], row["decision"], row["reason"]) == (3, "rejected", "Too little.")
    assert (row["gain"], row["gain_ci_low"], row["gain_ci_high"]) == (0.0123, -0.002, None)
    assert (row["heldout_tokens"], row["heldout_requests"]) == (18240, None)
    assert row["canary"] == {"canary": "failed", "canary_requests": "88"}
    assert row["promoted_ms"] is None


def test_a_version_that_nobody_tagged() -> None:
    row = round_row(info(1))
    assert row["decision"] is None
    assert moves([row]) == []


def test_moves_are_newest_first_and_say_why() -> None:
    rows = [
        round_row(info(2, promoted_at="2026-01-02T10:00:00+00:00", decision_reason="Better.")),
        round_row(
            info(
                1,
                promoted_at="2026-01-01T10:00:00+00:00",
                rolled_back_at="2026-01-01T11:00:00+00:00",
                rollback_reason="slower",
            )
        ),
        round_row(info(3, promoted_at="yesterday")),
    ]
    found = [(move["move"], move["version"], move["reason"]) for move in moves(rows)]
    assert found == [("promoted", 2, "Better."), ("rolled back", 1, "slower"), ("promoted", 1, None)]
    assert moves(rows)[0]["time_ms"] == 1767348000000


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def sign(time: float, details: Any = None, place: tuple[str, str, int] = PLACE) -> SignOfLife:
    return SignOfLife(*place, time, {} if details is None else details)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(clock: Clock) -> Workers:
    return Workers(TTL, clock)


def only(workers: Workers) -> Mapping[str, Any]:
    (row,) = workers.rows()
    return row


def test_age_is_by_our_clock_whatever_theirs_says(workers: Workers, clock: Clock) -> None:
    """Their clock is an hour off: the age is that of the last change that we saw."""
    workers.look([sign(-2600)], {})
    clock.now += 10
    workers.look([sign(-2600)], {})
    assert only(workers)["age_seconds"] == 10
    workers.look([sign(-2590)], {})
    assert only(workers)["age_seconds"] == 0


def test_one_that_expired_falls_silent_and_is_forgotten_after_an_hour(workers: Workers, clock: Clock) -> None:
    workers.look([sign(1, {"drafts": {"law": 3}})], {})
    clock.now += TTL + 1
    workers.look([], {})
    row = only(workers)
    assert (row["silent"], row["age_seconds"], row["drafts"]) == (True, TTL + 1, {"law": 3})
    clock.now += FORGET_SECONDS
    workers.look([], {})
    assert workers.rows() == []


def test_one_that_said_goodbye_is_forgotten_at_once(workers: Workers, clock: Clock) -> None:
    workers.look([sign(1)], {})
    clock.now += 5
    workers.look([], {})
    assert workers.rows() == []


def test_one_that_comes_back_is_not_silent_any_more(workers: Workers, clock: Clock) -> None:
    workers.look([sign(1)], {})
    clock.now += 60
    workers.look([], {})
    assert only(workers)["silent"]
    workers.look([sign(70)], {})
    assert not only(workers)["silent"]


def test_one_that_was_restarted_leaves_no_ghost(workers: Workers, clock: Clock) -> None:
    """Killed, and started again under another number; one that ran beside it replaces nobody."""
    beside = ("serving", "a", 9)
    workers.look([sign(1), sign(1, place=beside)], {})
    clock.now += TTL + 1
    workers.look([sign(2, place=beside)], {})
    assert [row["silent"] for row in workers.rows()] == [True, False]
    clock.now += 5
    workers.look([sign(3, place=beside), sign(20, place=("serving", "a", 12))], {})
    assert [(row["pid"], row["silent"]) for row in workers.rows()] == [(9, False), (12, False)]


def test_a_worker_lags_only_after_a_while(workers: Workers, clock: Clock) -> None:
    """Every swap makes workers differ for some seconds; only one that stays behind is marked."""
    beat = 0.0
    for seconds, served, behind in [
        (0, 3, []),
        (5, 3, []),
        (BEHIND_SECONDS, 3, ["law"]),
        (5, 4, []),
        (5, 3, []),
    ]:
        clock.now += seconds
        beat += 1
        workers.look([sign(beat, {"drafts": {"law": served, "faq": 9}})], {"law": 4})
        assert only(workers)["behind"] == behind, seconds


@pytest.mark.parametrize(
    "details", [[], "text", {"drafts": 3}, {"drafts": {"law": [1]}}, {"started_ms": "x"}]
)
def test_details_that_another_program_wrote(workers: Workers, details: Any) -> None:
    workers.look([sign(1, details)], {"law": 4})
    row = only(workers)
    assert (row["drafts"], row["behind"], row["started_ms"]) == ({}, [], None)


def test_a_workers_load_is_no_worker(workers: Workers) -> None:
    workers.look([sign(1), sign(1, place=("load", "a", 1))], {})
    assert only(workers)["role"] == "serving"
