"""Rounds on real workers: asked for, run, reported, one at a time."""

from __future__ import annotations

import signal
import time

import pytest
import redis
from celery import Celery
from redraft_queue.celery_app import request_round, round_status
from redraft_queue.heartbeat import heartbeats
from redraft_queue.schedule import schedule_of

from .watching import SETTINGS, Spawn, finished, members, starts, until

pytestmark = pytest.mark.integration


def test_a_round_is_asked_for_run_and_reported(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    client.set("test:round:seconds", 2.0)
    round_id = request_round(app, "default")
    assert round_status(app, round_id).state == "PENDING"

    spawn()
    until(lambda: round_status(app, round_id).state == "PROGRESS")
    assert "step" in round_status(app, round_id).details
    status = finished(app, round_id)
    assert (status.state, status.details["decision"], status.details["domain"]) == (
        "SUCCESS",
        "promoted",
        "default",
    )


def test_a_failing_round_and_a_bad_domain_leave_the_worker_working(spawn: Spawn, app: Celery) -> None:
    spawn()
    broken = request_round(app, "broken")
    app.send_task("redraft.train_round", kwargs={"domain": "a/b"}, task_id="bad-domain")
    good = request_round(app, "default")

    assert "this round fails" in finished(app, broken).details["error"]
    assert "is no name" in finished(app, "bad-domain").details["error"]
    assert finished(app, good).state == "SUCCESS"


def test_a_second_round_does_not_wait_behind_a_long_one(
    spawn: Spawn, client: redis.Redis, app: Celery
) -> None:
    """A worker takes one task and reserves none behind it."""
    client.set("test:round:seconds", 20.0)
    first, second = spawn(), spawn()
    until(lambda: len(heartbeats(client)) == 2)
    one = request_round(app, "one")
    until(lambda: starts(client) == [one])
    asked = time.monotonic()
    two = request_round(app, "two")
    until(lambda: starts(client) == [one, two], 5)
    assert time.monotonic() - asked < 5
    assert first.poll() is None
    assert second.poll() is None


def test_two_rounds_of_one_domain_do_not_overlap(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    client.set("test:round:seconds", 3.0)
    spawn(), spawn()
    until(lambda: len(heartbeats(client)) == 2)
    first = request_round(app, "default")
    until(lambda: starts(client) == [first])
    second = finished(app, request_round(app, "default"))

    assert second.details["decision"] == "skipped"
    assert first in second.details["reason"]
    assert finished(app, first).details["decision"] == "promoted"


def test_a_busy_solo_worker_is_alive_by_its_heartbeat_only(
    spawn: Spawn, client: redis.Redis, app: Celery
) -> None:
    client.set("test:round:seconds", 7.0)
    worker = spawn()
    until(lambda: bool(heartbeats(client)))
    until(lambda: len(app.control.inspect(timeout=2).ping() or {}) == 1)
    round_id = request_round(app, "default")
    until(lambda: starts(client) == [round_id])
    time.sleep(SETTINGS.heartbeat_ttl_seconds + 1)

    assert app.control.inspect(timeout=1).ping() is None
    assert [(sign.role, sign.pid) for sign in heartbeats(client)] == [("worker", worker.pid)]
    assert finished(app, round_id).state == "SUCCESS"
    until(lambda: len(app.control.inspect(timeout=1).ping() or {}) == 1)


def test_the_schedule_knows_how_rounds_ended(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    client.set("redraft:tokens:default", 700)
    worker = spawn()
    finished(app, request_round(app, "default"))
    until(lambda: schedule_of(client, "default", SETTINGS).decision == "promoted")
    view = schedule_of(client, "default", SETTINGS)
    assert (view.finished_trigger, view.rounds_without_gain) == ("operator", 1)  # it told no gain
    assert client.hget("redraft:schedule:default", "tokens_added") == b"700"
    finished(app, request_round(app, "broken", trigger="tokens"))
    until(lambda: schedule_of(client, "broken", SETTINGS).last_end == "failed")
    assert "this round fails" in (schedule_of(client, "broken", SETTINGS).last_reason or "")
    assert worker.poll() is None


def test_restarts_leave_nothing_behind(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    """Each start has a name of its own; keys that carry it go with it, so nothing piles up."""
    left = []
    for _ in range(3):
        worker = spawn()
        assert finished(app, request_round(app, "default")).state == "SUCCESS"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
        results = client.keys("redraft:celery:celery-task-meta-*")
        assert all(client.ttl(key) > 0 for key in results)
        left.append({key: members(client, key) for key in set(client.keys("redraft:*")) - set(results)})
    assert left[0] == left[1] == left[2]
