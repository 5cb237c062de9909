"""The round lock on a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import redis
from redraft_queue.errors import LockHeld
from redraft_queue.lock import RoundLock, ask_held, holder

KEY = "redraft:lock:round:default"


def test_one_round_holds_a_domain(client: redis.Redis) -> None:
    with RoundLock(client, "default", "round-1", 5.0) as lock:
        assert holder(client, "default") == "round-1"
        with pytest.raises(LockHeld, match="round-1") as raised, RoundLock(client, "default", "round-2", 5.0):
            pytest.fail("two rounds hold one domain")
        assert raised.value.holder == "round-1"
        with RoundLock(client, "other", "round-2", 5.0):
            assert holder(client, "other") == "round-2"
        assert not lock.lost.is_set()
    assert holder(client, "default") is None
    with RoundLock(client, "default", "round-2", 5.0):
        pass


def test_the_same_round_delivered_twice_does_not_enter_twice(client: redis.Redis) -> None:
    with (
        RoundLock(client, "default", "round-1", 5.0),
        pytest.raises(LockHeld) as raised,
        RoundLock(client, "default", "round-1", 5.0),
    ):
        pytest.fail("one round runs twice")
    assert raised.value.holder == "round-1"


def test_a_living_holder_keeps_the_lock(client: redis.Redis) -> None:
    """Without the beating thread, the wrong variant, the lock ends after its ttl."""
    with RoundLock(client, "default", "round-1", 0.4) as lock:
        time.sleep(1.2)
        assert holder(client, "default") == "round-1"
        assert not lock.lost.is_set()

    client.set(KEY, "round-1 token", px=400)
    time.sleep(0.6)
    assert holder(client, "default") is None


def test_a_dead_holders_lock_ends_also_if_the_servers_clock_was_set_back(client: redis.Redis) -> None:
    """Its end is a time of that clock, here an hour ahead; whoever asks for the domain gives it its ttl."""
    client.set(KEY, "round-1 token", px=3_600_000)
    with pytest.raises(LockHeld), RoundLock(client, "default", "round-2", 0.4):
        pytest.fail("the lock of another round was taken")
    time.sleep(0.6)
    assert holder(client, "default") is None

    with RoundLock(client, "default", "round-1", 0.4):
        client.pexpire(KEY, 3_600_000)
        assert ask_held(client, "default", 0.4) == 1
        time.sleep(1.2)
        assert ask_held(client, "default", 0.4) == 1
    assert ask_held(client, "default", 0.4) == 0


DIES = """
import os, signal, sys
from redraft_queue.lock import RoundLock
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
RoundLock(connect(sys.argv[1], QueueSettings()), "default", "round-1", 1.5).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_dead_holders_lock_ends(client: redis.Redis, redis_url: str) -> None:
    assert subprocess.run([sys.executable, "-c", DIES, redis_url], check=False).returncode == -signal.SIGKILL
    assert holder(client, "default") == "round-1"
    time.sleep(1.8)
    with RoundLock(client, "default", "round-2", 0.5):
        assert holder(client, "default") == "round-2"


def test_a_lock_that_was_taken_over_is_lost_and_left_alone(client: redis.Redis) -> None:
    with RoundLock(client, "default", "round-1", 0.4) as lock:
        client.set(KEY, "round-2 token", px=60_000)
        assert lock.lost.wait(1)
    assert holder(client, "default") == "round-2"


def test_a_lock_that_was_deleted_is_lost(client: redis.Redis) -> None:
    with RoundLock(client, "default", "round-1", 0.4) as lock:
        client.flushall()
        assert lock.lost.wait(1)


def test_a_lock_is_lost_before_it_ends_where_the_server_freezes(client: redis.Redis) -> None:
    pid = client.info("server")["process_id"]
    lock = RoundLock(client, "default", "round-1", 6.0)
    with lock:
        os.kill(pid, signal.SIGSTOP)
        frozen = time.monotonic()
        try:
            assert lock.lost.wait(10)
            assert time.monotonic() - frozen < 6.0 + 1.0  # the ttl and one socket timeout
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_short_freeze_is_survived(client: redis.Redis) -> None:
    pid = client.info("server")["process_id"]
    with RoundLock(client, "default", "round-1", 6.0) as lock:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(pid, signal.SIGCONT)
        time.sleep(2.0)
        assert not lock.lost.is_set()
        assert holder(client, "default") == "round-1"


def test_an_error_inside_frees_the_lock(client: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), RoundLock(client, "default", "round-1", 60.0):
        _ = 1 // 0
    assert holder(client, "default") is None
