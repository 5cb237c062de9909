"""What serving workers say of their load, on a real Valkey."""

from __future__ import annotations

import json

import pytest
import redis
from redraft_queue import keys
from redraft_queue.errors import StreamUnavailable
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.load import ROLE, TTL_SECONDS, Load, load_details, machine, serving_load
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return connect(redis_url, QueueSettings())


def say(client: redis.Redis, host: str, details: dict[str, object] | bytes, role: str = ROLE) -> None:
    value = details if isinstance(details, bytes) else json.dumps({"time": 0.0, "details": details})
    client.set(keys.heartbeat(role, host, 1), value)
    client.sadd(keys.HEARTBEATS, keys.heartbeat(role, host, 1))


def test_workers_of_this_machine_are_added_up_and_others_left_out(client: redis.Redis) -> None:
    """Containers of one machine have different host names, and the same boot."""
    assert serving_load(client) == Load()
    say(client, "a", load_details(2, 1, 10.0))
    say(client, "b", load_details(0, 3, 5.5))
    say(client, "c", {**load_details(9, 9, 9.0), "machine": "another"})
    say(client, "a", {**load_details(7, 7, 7.0)}, "serving")
    assert serving_load(client) == Load(workers=2, running=2, waiting=4, busy_seconds=15.5)


@pytest.mark.parametrize("value", [b"", b"junk", b"[]", b'{"details": {}}', b'{"details": {"running": "x"}}'])
def test_what_can_not_be_read_is_no_load(client: redis.Redis, value: bytes) -> None:
    say(client, "a", load_details(1, 0, 1.0))
    say(client, "b", value)
    assert serving_load(client).running == 1


def test_a_worker_that_leaves_takes_its_load_with_it(client: redis.Redis) -> None:
    with Heartbeat(client, ROLE, TTL_SECONDS, lambda: load_details(3, 0, 1.0)):
        while serving_load(client).workers == 0:
            pass
        assert serving_load(client).running == 3
        (name,) = client.keys(f"{keys.heartbeats_of(ROLE)}*")  # type: ignore[misc]
        assert 0 < client.pttl(name) <= TTL_SECONDS * 1000
    assert serving_load(client) == Load()
    assert machine()


def test_without_redis_nothing_is_known(client: redis.Redis) -> None:
    away = connect("redis://127.0.0.1:1/0", QueueSettings(socket_timeout_seconds=0.2))
    with pytest.raises(StreamUnavailable):
        serving_load(away)
