"""Evidence of trials on a real server."""

from __future__ import annotations

import threading
import time

import pytest
import redis
from redraft_queue.errors import BadName, StreamUnavailable
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from redraft_queue.trials import TrialStore

TRIAL = "canary-7-3"
KEY = f"redraft:trial:support:{TRIAL}"


@pytest.fixture
def store(client: redis.Redis) -> TrialStore:
    return TrialStore(client)


def test_reports_are_absolute_and_totals_go_over_workers(store: TrialStore) -> None:
    store.report("support", TRIAL, "host:1:a", {"champion": {"requests": 3, "tested": 10.5}})
    store.report("support", TRIAL, "host:1:a", {"champion": {"requests": 4, "tested": 20.5}})
    store.report("support", TRIAL, "host:2:b", {"champion": {"requests": 1}, "challenger": {"requests": 2}})
    expected = {"champion": {"requests": 5.0, "tested": 20.5}, "challenger": {"requests": 2.0}}
    assert store.totals("support", TRIAL) == expected
    assert store.totals("support", "canary-8-3") == {}
    assert store.totals("faq", TRIAL) == {}


def test_a_trial_has_a_bounded_life(store: TrialStore, client: redis.Redis) -> None:
    store.report("support", TRIAL, "a", {"champion": {"requests": 1}})
    assert 29 * 86_400 < client.ttl(KEY) <= 30 * 86_400
    store.report("support", "canary-8-3", "a", {})
    assert client.keys("redraft:trial:*") == [KEY.encode()]
    store.drop("support", TRIAL)
    assert store.totals("support", TRIAL) == {}
    assert 0 < client.ttl(KEY) <= 600


def test_a_late_report_does_not_bring_a_decided_trial_back(store: TrialStore, client: redis.Redis) -> None:
    """A worker that has not noticed yet repeats its sums; the same two versions may meet again later."""
    late = {"champion": {"requests": 400.0}}
    store.report("support", TRIAL, "a", late)
    store.drop("support", TRIAL)
    store.report("support", TRIAL, "a", late)
    assert store.totals("support", TRIAL) == {}
    assert client.ttl(KEY) <= 600, "nor does it keep the key"
    client.delete(KEY)  # that time has passed
    store.report("support", TRIAL, "b", {"champion": {"requests": 1.0}})
    assert store.totals("support", TRIAL) == {"champion": {"requests": 1.0}}


def test_an_unreadable_report_counts_as_nothing(store: TrialStore, client: redis.Redis) -> None:
    store.report("support", TRIAL, "a", {"champion": {"requests": 1}})
    client.hset(KEY, mapping={"b champion": b"\xff", "c champion": "[1]", "d champion": '{"tested": "x"}'})
    assert store.totals("support", TRIAL) == {"champion": {"requests": 1.0}}


def test_windows_of_a_watch(store: TrialStore) -> None:
    assert store.window("support", "watch-7-3") == 0
    store.open_window("support", "watch-7-3", 2)
    assert store.window("support", "watch-7-3") == 2
    store.open_window("support", "watch-8-7", 1)
    assert store.window("support", "watch-7-3") == 0
    assert store.window("support", "watch-8-7") == 1


def test_one_decides_at_a_time(store: TrialStore) -> None:
    with store.deciding("support") as mine:
        assert mine
        with store.deciding("support") as second, store.deciding("faq") as other:
            assert not second
            assert other
        with store.deciding("support") as third:
            assert not third, "whoever was refused must not release the lock"
    with store.deciding("support") as again:
        assert again


def test_a_dead_holders_lock_ends_also_if_the_servers_clock_was_set_back(client: redis.Redis) -> None:
    """Its end is a time of that clock, here an hour ahead."""
    store = TrialStore(client, decision_seconds=0.2)
    client.set("redraft:lock:trial:support", "token", px=3_600_000)
    with store.deciding("support") as mine:
        assert not mine
    time.sleep(0.4)
    with store.deciding("support") as mine:
        assert mine


def test_a_dead_holders_lock_ends_and_its_late_release_is_harmless(client: redis.Redis) -> None:
    store = TrialStore(client, decision_seconds=0.1)
    with store.deciding("support") as mine:
        assert mine
        time.sleep(0.2)
        client.set("redraft:lock:trial:support", b"somebody else")
    assert client.get("redraft:lock:trial:support") == b"somebody else"


def test_ten_threads_are_let_in_one_by_one(store: TrialStore) -> None:
    inside, most, entered = 0, 0, 0

    def enter() -> None:
        nonlocal inside, most, entered
        with store.deciding("support") as mine:
            if mine:
                inside += 1
                most, entered = max(most, inside), entered + 1
                time.sleep(0.02)
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert entered >= 1


def test_redis_away_is_said_in_time() -> None:
    store = TrialStore(connect("redis://127.0.0.1:1/0", QueueSettings(socket_timeout_seconds=0.5)))
    for call in (
        lambda: store.report("support", TRIAL, "a", {"champion": {"requests": 1}}),
        lambda: store.totals("support", TRIAL),
        lambda: store.deciding("support").__enter__(),
    ):
        with pytest.raises(StreamUnavailable):
            call()
    with pytest.raises(BadName):
        store.totals("../x", TRIAL)
