"""Rounds that beat asks for because live acceptance fell while a candidate was on trial."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from redraft_queue import keys
from redraft_queue.beat import RoundClock
from redraft_queue.celery_app import build_app
from redraft_queue.due import Fall
from redraft_queue.schedule import record_asked, schedule_of, server_ms, state_of
from redraft_queue.trials import TrialStore
from redraft_trainer.rounds import run_round

from .conftest import DOMAIN, Bench

pytestmark = pytest.mark.integration

STEADY = {"short": 0.29, "long": 0.29, "tested": 50_000}
FALLEN = {"short": 0.17, "long": 0.29, "tested": 50_000}


@pytest.fixture
def trying(bench: Bench) -> Bench:
    """Version 1 is on trial, and as much traffic as a round needs came after it."""
    queue = bench.context.queue.model_copy(update={"schedule_min_seconds": 0.001})
    tried = replace(bench, context=replace(bench.context, canary=True, queue=queue))
    tried.traffic(100, seed=0)
    assert tried.run("first", max_steps=10).decision == "challenger"
    tried.traffic(100, seed=1)
    return tried


@pytest.fixture
def beat(trying: Bench, redis_url: str) -> Iterator[RoundClock]:
    app: Celery = build_app(redis_url, trying.context.queue)
    clock = RoundClock(app, trying.context.client, trying.context.queue, [DOMAIN])
    clock.tick()  # a wait begins
    yield clock
    app.close()


def seen(bench: Bench, beat: RoundClock, acceptance: Mapping[str, float], version: int = 1) -> str:
    """Two looks of beat at a serving worker's heartbeat; the round it has asked for last, or ''."""
    details = {"challengers": {DOMAIN: version}, "acceptance": {DOMAIN: acceptance}}
    key = keys.heartbeat("serving", "host", 1)
    bench.context.client.sadd(keys.HEARTBEATS, key)
    bench.context.client.set(key, json.dumps({"time": time.time(), "details": details}))
    beat.tick(), beat.tick()
    return state_of(bench.context.client.hgetall(keys.schedule(DOMAIN))).round_id


def tags(bench: Bench, version: int = 1) -> Mapping[str, Any]:
    return bench.context.registry.version(DOMAIN, version).tags


def test_a_fall_ends_the_trial_and_its_round_trains(trying: Bench, beat: RoundClock) -> None:
    context = trying.context
    assert seen(trying, beat, FALLEN) == "", "the fall is older than the trial"
    assert seen(trying, beat, STEADY) == ""
    round_id = seen(trying, beat, FALLEN)
    assert round_id
    assert context.client.llen("redraft:celery:redraft") == 1
    assert schedule_of(context.client, DOMAIN, context.queue).trigger == "drop"
    assert run_round(context, DOMAIN, "operator", force=True).decision == "skipped", "nobody else ends it"
    with TrialStore(context.client).deciding(DOMAIN):
        held = run_round(context, DOMAIN, round_id)
    assert (held.decision, tags(trying)["canary"]) == ("skipped", "running")
    assert "version 1" in held.reason

    result = trying.run(round_id, max_steps=4)
    assert result.version == 2
    assert (tags(trying)["canary"], tags(trying)["validation_status"]) == ("undecided", "rejected")
    moved = "The traffic moved while it was tried: acceptance fell from 0.29 to 0.17."
    assert tags(trying)["decision_reason"] == moved
    assert tags(trying, 2)["stream_first_id"] > tags(trying)["stream_last_id"]
    assert trying.run(round_id) == result, "a second delivery"


def test_a_trial_decided_meanwhile_stays_as_it_was_decided(trying: Bench, beat: RoundClock) -> None:
    """Heartbeats tell of a trial a little longer than it lasts."""
    context, registry = trying.context, trying.context.registry
    seen(trying, beat, STEADY)
    round_id = seen(trying, beat, FALLEN)

    def decide(event: Mapping[str, Any]) -> None:
        if event["stage"] == "collect" and tags(trying)["canary"] == "running":
            registry.promote(DOMAIN, 1, canary=True)

    quick = replace(context, trainer=context.trainer.model_copy(update={"max_steps": 4}))
    assert run_round(quick, DOMAIN, round_id, progress=decide).version == 2
    assert (tags(trying)["canary"], tags(trying)["validation_status"]) == ("passed", "approved")
    assert tags(trying, 2)["parent_version"] == "1"


def test_a_fall_ends_no_other_trial_than_its_own(trying: Bench) -> None:
    client = trying.context.client
    state = state_of(client.hgetall(keys.schedule(DOMAIN)))
    stale = Fall(trial=7, before=0.29, now=0.17)
    assert record_asked(client, DOMAIN, state, server_ms(client), "drop", "late", 0, stale)
    result = run_round(trying.context, DOMAIN, "late")
    assert (result.decision, tags(trying)["canary"]) == ("skipped", "running")
