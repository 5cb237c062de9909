"""The schedule's hash on a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from redraft_queue import keys
from redraft_queue.due import ScheduleState
from redraft_queue.errors import StreamUnavailable
from redraft_queue.events import ChampionMoved, publish_champion
from redraft_queue.schedule import (
    record_asked,
    record_finished,
    record_lost_trial,
    record_sent,
    reset_wait,
    restamp,
    schedule_of,
    server_ms,
    state_of,
)
from redraft_queue.settings import QueueSettings
from redraft_queue.spoken import duration

SETTINGS = QueueSettings(schedule_seconds=1800, schedules={"law": "0 3 * * *"})
KEY = keys.schedule("default")
REJECTED = {"decision": "rejected", "gain": 0.002, "gain_ci_low": -0.004, "gain_ci_high": 0.008}
PROMOTED = {
    "decision": "promoted",
    "gain": 0.03,
    "gain_ci_low": 0.01,
    "gain_ci_high": 0.05,
    "reason": "better",
}


def state(client: redis.Redis) -> ScheduleState:
    return state_of(client.hgetall(KEY))


def finish(client: redis.Redis, result: dict[str, Any], round_id: str = "", tokens: int = 7) -> ScheduleState:
    record_finished(client, "default", result, tokens, round_id=round_id, trigger="operator")
    return state(client)


def test_a_round_is_claimed_once(client: redis.Redis) -> None:
    """Two beats decided on the same state."""
    before, now = state(client), server_ms(client)
    assert record_asked(client, "default", before, now, "tokens", "r1", 500)
    assert not record_asked(client, "default", before, now + 3, "clock", "r2", 600)
    found = state(client)
    assert (found.asked_ms, found.trigger, found.round_id, found.asked_tokens) == (now, "tokens", "r1", 500)
    assert not found.sent
    record_sent(client, "default")
    assert state(client).sent
    assert record_asked(client, "default", found, now + 9, "clock", "r2", 600)


def test_a_stamp_is_moved_only_where_nobody_else_did(client: redis.Redis) -> None:
    before = state(client)
    restamp(client, "default", before, 1_000)
    assert state(client).asked_ms == 1_000
    restamp(client, "default", before, 2_000)
    assert state(client).asked_ms == 1_000


def test_rounds_without_a_sure_gain_add_up_and_a_sure_one_ends_them(client: redis.Redis) -> None:
    for number in range(1, 4):
        assert finish(client, REJECTED, f"r{number}").rounds_without_gain == number
    assert finish(client, REJECTED, "r3").rounds_without_gain == 3  # delivered again after its end
    found = finish(client, {"decision": "skipped", "reason": "7 new tokens are fewer than 20000"}, "r4", 99)
    assert (found.rounds_without_gain, found.end, found.decision) == (3, "skipped", "rejected")
    assert (found.tokens_added, found.gain) == (7, 0.002)
    found = finish(client, {"decision": "failed", "reason": "out of memory"}, "r5")
    assert (found.rounds_without_gain, found.end, found.reason) == (3, "failed", "out of memory")
    found = finish(client, PROMOTED, "r6", 1_234)
    assert (found.rounds_without_gain, found.decision, found.tokens_added) == (0, "promoted", 1_234)
    assert (found.gain_ci_low, found.gain_ci_high, found.finished_trigger) == (0.01, 0.05, "operator")
    assert abs((found.finished_ms or 0) - time.time() * 1000) < 60_000


def test_a_challenger_s_trial_says_whether_its_round_had_a_gain(client: redis.Redis) -> None:
    """Approved by the gate and refused by the traffic, again and again: the wait grows all the same."""
    challenger = {**PROMOTED, "decision": "challenger"}
    for number in range(1, 4):
        assert finish(client, challenger, f"r{number}").rounds_without_gain == number - 1
        for _ in range(2):  # the worker that ended the trial died before the registry knew
            record_lost_trial(client, "default", number)
        assert state(client).rounds_without_gain == number
    said = schedule_of(client, "default", SETTINGS).headroom or ""
    assert said.startswith("no headroom: 3 rounds in a row without a sure gain, the last, +0.03")
    assert "has not stood its trial" in said
    reset_wait(client, "default")  # a champion has moved
    assert state(client).rounds_without_gain == 0


def test_numbers_that_a_round_did_not_get_to_are_none(client: redis.Redis) -> None:
    found = finish(client, PROMOTED)
    found = finish(client, {"decision": "rejected", "gain": None, "gain_ci_low": None})
    assert (found.gain, found.gain_ci_low, found.rounds_without_gain) == (None, None, 1)
    assert finish(client, {**PROMOTED, "gain_ci_low": 0.0}).rounds_without_gain == 2  # zero isn't excluded


def test_a_fall_ends_the_doubling_and_writes_nothing_where_nothing_is(client: redis.Redis) -> None:
    reset_wait(client, "default")
    assert not client.exists(KEY)
    finish(client, REJECTED)
    reset_wait(client, "default")
    assert state(client).rounds_without_gain == 0


def test_a_champion_that_moved_ends_the_doubling(client: redis.Redis) -> None:
    finish(client, REJECTED)
    publish_champion(client, ChampionMoved("law", 3))
    assert state(client).rounds_without_gain == 1
    publish_champion(client, ChampionMoved("default", 3))
    assert state(client).rounds_without_gain == 0


def test_what_status_says(client: redis.Redis) -> None:
    empty = schedule_of(client, "default", SETTINGS)
    assert (empty.next_due_ms, empty.trigger, empty.headroom, empty.schedule) == (None, None, None, "30 min")

    now = server_ms(client)
    record_asked(client, "default", state(client), now, "drop", "r0", 5)
    for number in range(3):
        finish(client, REJECTED, f"r{number}")
    client.set(keys.round_lock("default"), "r9 token")
    view = schedule_of(client, "default", SETTINGS)
    assert (view.trigger, view.asked_ms, view.running, view.wait_seconds) == ("drop", now, True, 4 * 3600)
    assert view.next_due_ms == now + 4 * 3_600_000
    assert view.headroom == (
        "no headroom: 3 rounds in a row without a sure gain, the last +0.002 (-0.004 to +0.008); "
        "next round in 4 h"
    )
    assert view.to_dict()["gain_ci_high"] == 0.008
    finish(client, {**REJECTED, "gain_ci_high": None}, "r7")
    assert "the last +0.002 (at least -0.004); next" in (
        schedule_of(client, "default", SETTINGS).headroom or ""
    )
    finish(client, PROMOTED, "r8")
    assert schedule_of(client, "default", SETTINGS).headroom is None
    assert schedule_of(client, "law", SETTINGS).schedule == "0 3 * * *"


def test_a_stamp_of_the_future_is_shown_as_now(client: redis.Redis) -> None:
    client.hset(KEY, "asked_ms", server_ms(client) + 10**9)
    view = schedule_of(client, "default", SETTINGS)
    assert view.next_in_seconds == pytest.approx(1800, abs=5)


@pytest.mark.parametrize("garbage", ["", "x", "-5", "1e400", "\ud800", "9" * 400, "9" * 5000, "--5"])
def test_a_field_that_makes_no_sense_counts_as_missing(client: redis.Redis, garbage: str) -> None:
    names = ("asked_ms", "asked_tokens", "gain", "gain_ci_low", "tokens_added", "rounds_without_gain", "sent")
    client.hset(KEY, mapping={name: garbage.encode("utf-8", "surrogatepass") for name in names})
    found = state(client)
    assert found.rounds_without_gain >= 0
    assert schedule_of(client, "default", SETTINGS).schedule == "30 min"


def test_lengths_of_time_in_words() -> None:
    seconds = (0.25, 45, 90, 5400, 86_400, 200_000)
    assert [duration(s) for s in seconds] == ["0.2 s", "45 s", "1.5 min", "1.5 h", "1 d", "2.3 d"]


def test_a_server_that_is_away_is_one_error() -> None:
    nobody = redis.Redis(port=1, socket_timeout=0.2)
    with pytest.raises(StreamUnavailable, match="read the schedule of domain default"):
        schedule_of(nobody, "default", SETTINGS)
    with pytest.raises(StreamUnavailable, match="note the end of the round"):
        record_finished(nobody, "default", {}, 0)
