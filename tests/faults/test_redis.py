"""Redis is stopped, frozen, full, flushed, or comes back empty, while requests run."""

from __future__ import annotations

import signal
import time

import pytest

from .checks import (
    another_version,
    in_stream,
    nobody_noticed,
    nothing_lost,
    ranges,
    trained_once,
    written_is_there,
)
from .conftest import Site
from .traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

STOPPED_SECONDS, FROZEN_SECONDS, FULL_SECONDS = 60.0, 8.0, 10.0
BACK_SECONDS = 15.0


def all_is_well(site: Site, traffic: Traffic) -> None:
    """After the fault: the loop goes round, nobody noticed, nothing is lost or trained twice."""
    site.saw("next version", another_version(site.deployment))
    traffic.stop()
    nobody_noticed(traffic)
    nothing_lost(site.deployment, traffic)
    written_is_there(site.deployment, traffic)
    trained_once(site.deployment)


def test_redis_stopped_for_a_minute(site: Site, traffic: Traffic) -> None:
    """Samples wait in the worker and are written when it is back, within 15 s."""
    site.deployment.valkey.stop()
    time.sleep(STOPPED_SECONDS)
    during = len(traffic.records)
    site.deployment.valkey.start()
    assert site.saw("samples written", nothing_lost(site.deployment, traffic)) < BACK_SECONDS
    assert during > STOPPED_SECONDS
    all_is_well(site, traffic)


def test_redis_frozen(site: Site, traffic: Traffic) -> None:
    """It takes connections and answers nothing: every call ends at its time-out."""
    site.deployment.valkey.freeze()
    time.sleep(FROZEN_SECONDS)
    site.deployment.valkey.thaw()
    assert site.saw("samples written", nothing_lost(site.deployment, traffic)) < BACK_SECONDS
    all_is_well(site, traffic)


def test_redis_full(site: Site, traffic: Traffic) -> None:
    """It refuses every write for want of memory: noeviction, so that nothing old is thrown out."""
    client = site.deployment.valkey.client()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    time.sleep(FULL_SECONDS)
    before = len(in_stream(site.deployment))
    time.sleep(1)
    assert len(in_stream(site.deployment)) == before
    client.config_set("maxmemory", 0)
    assert site.saw("samples written", nothing_lost(site.deployment, traffic)) < BACK_SECONDS
    all_is_well(site, traffic)


def test_redis_flushed(site: Site, traffic: Traffic) -> None:
    """FLUSHALL takes what is stored, queue and locks included; all that comes later is kept and trained."""
    a_cursor(site)
    flushed = time.monotonic()
    site.deployment.valkey.client().flushall()
    begins_anew(site, traffic, flushed)


def test_redis_restarted_empty(site: Site, traffic: Traffic) -> None:
    """Killed, and started on an empty disk."""
    a_cursor(site)
    site.deployment.valkey.stop(signal.SIGKILL)
    flushed = time.monotonic()
    site.deployment.valkey.forget()
    site.deployment.valkey.start()
    begins_anew(site, traffic, flushed)


def begins_anew(site: Site, traffic: Traffic, flushed: float) -> None:
    """Whatever was asked after the flush is there; the rounds go on from an empty stream."""
    site.saw("next version", another_version(site.deployment))
    traffic.stop()
    nobody_noticed(traffic)
    everything, traffic.records = traffic.records, traffic.since(flushed)
    nothing_lost(site.deployment, traffic)
    traffic.records = everything
    trained_once(site.deployment)


def a_cursor(site: Site) -> None:
    """A version that tells how far the stream was trained on."""
    if not ranges(site.deployment):
        another_version(site.deployment)
