"""Clocks as processes: they ask on time and once, one is enough, and stale strokes are dropped."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import datetime
from itertools import pairwise

import pytest
import redis
from celery import Celery
from redraft_queue.heartbeat import heartbeats

from .watching import SETTINGS, Spawn, messages, starts, until

pytestmark = pytest.mark.integration


def test_beat_asks_by_the_clock_and_stops(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    settings = SETTINGS.model_copy(update={"schedule_seconds": 1.0})
    beat = spawn("beat", settings)
    spawn("worker", settings)
    until(lambda: len(starts(client)) >= 3)
    assert {sign.role for sign in heartbeats(client)} == {"beat", "worker"}
    beat.send_signal(signal.SIGTERM)
    assert beat.wait(timeout=10) == 0
    time.sleep(1)
    done = len(starts(client))
    time.sleep(2)
    assert len(starts(client)) == done


def test_two_beats_never_run_two_rounds_at_once(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    """Both ask for the same domain by the same clock, and two workers are there to take both."""
    client.set("test:round:seconds", 0.7)
    settings = SETTINGS.model_copy(update={"schedule_seconds": 1.0})
    for kind in ("beat", "beat", "worker", "worker"):
        spawn(kind, settings)
    until(lambda: len(starts(client)) >= 4)
    events = [line.decode().split() for line in client.lrange("test:rounds", 0, -1)]
    kinds = [kind for kind, _, _ in events]
    assert kinds == [("start", "end")[i % 2] for i in range(len(kinds))]


def test_two_beats_ask_once_for_each_stroke(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    """Period 2 s: between the first and the last of several strokes there is one round per period, though two
    beats watch the same clock, and the worker that would skip a second one is not even there.
    """
    settings = SETTINGS.model_copy(update={"schedule_seconds": 2.0})
    for _ in range(2):
        spawn("beat", settings)
    until(lambda: client.llen("redraft:celery:redraft") >= 6, 60)
    stamps = sorted(json.loads(message)["headers"]["expires"] for message in messages(client))
    ids = {json.loads(message)["headers"]["id"] for message in messages(client)}
    moments = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    assert len(ids) == len(moments)
    for before, after in pairwise(moments):
        assert 1.9 < after - before < 4.0


def test_when_one_beat_dies_the_other_goes_on(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    settings = SETTINGS.model_copy(update={"schedule_seconds": 1.0})
    first, second = spawn("beat", settings), spawn("beat", settings)
    until(lambda: len(messages(client)) >= 2)
    first.kill()
    done = len(messages(client))
    until(lambda: len(messages(client)) >= done + 3)
    assert second.poll() is None


def test_beat_lives_on_while_its_server_is_frozen_and_after_a_flush(
    spawn: Spawn, client: redis.Redis, app: Celery
) -> None:
    settings = SETTINGS.model_copy(update={"schedule_seconds": 1.0, "tick_seconds": 0.5})
    server = int(client.info("server")["process_id"])
    beat = spawn("beat", settings)
    until(lambda: len(messages(client)) >= 1)
    subprocess.run(["kill", "-STOP", str(server)], check=True)
    time.sleep(5)
    subprocess.run(["kill", "-CONT", str(server)], check=True)
    done = len(messages(client))
    until(lambda: len(messages(client)) > done + 1)
    client.flushall()
    until(lambda: len(messages(client)) >= 2)
    assert beat.poll() is None


def test_stale_ticks_are_dropped(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    """No worker for a while: the ticks of that time don't pile up into rounds."""
    settings = SETTINGS.model_copy(update={"schedule_seconds": 1.0})
    beat = spawn("beat", settings)
    until(lambda: client.llen("redraft:celery:redraft") >= 4)
    beat.send_signal(signal.SIGTERM)
    beat.wait(timeout=10)
    time.sleep(1.5)
    spawn("worker", settings)
    until(lambda: client.llen("redraft:celery:redraft") == 0)
    time.sleep(1)
    assert starts(client) == []
