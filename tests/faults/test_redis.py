"""Redis is stopped, frozen, full, flushed, or comes back empty, while requests run."""

from __future__ import annotations

import signal
import time

import pytest

from .checks import (
    WHOLE_ROUND_SECONDS,
    amiss,
    another_version,
    drained,
    forgotten,
    in_stream,
    ranges,
)
from .conftest import Site
from .traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

STOPPED_SECONDS, FROZEN_SECONDS, FULL_SECONDS = 60.0, 8.0, 10.0
BACK_SECONDS = 15.0


def test_redis_stopped_for_a_minute(site: Site, traffic: Traffic) -> None:
    """Samples wait in the worker and are written when it is back, within 15 s."""
    site.deployment.valkey.stop()
    time.sleep(STOPPED_SECONDS)
    during = len(traffic.records)
    site.deployment.valkey.start()
    assert site.saw("samples written", drained(site.deployment, traffic)) < BACK_SECONDS
    assert during > STOPPED_SECONDS
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert forgotten(site.deployment, traffic) == 0


def test_redis_frozen(site: Site, traffic: Traffic) -> None:
    """It takes connections and answers nothing: every call ends at its time-out."""
    site.deployment.valkey.freeze()
    time.sleep(FROZEN_SECONDS)
    site.deployment.valkey.thaw()
    assert site.saw("samples written", drained(site.deployment, traffic)) < BACK_SECONDS
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert forgotten(site.deployment, traffic) == 0


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
    assert site.saw("samples written", drained(site.deployment, traffic)) < BACK_SECONDS
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert forgotten(site.deployment, traffic) == 0


def test_redis_flushed(site: Site, traffic: Traffic) -> None:
    """FLUSHALL takes what is stored, queue and locks included; all that comes later is kept and trained."""
    a_cursor(site)
    flushed = time.monotonic()
    site.deployment.valkey.client().flushall()
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic, since=flushed) == []


def test_redis_restarted_empty(site: Site, traffic: Traffic) -> None:
    """Killed, and started on an empty disk."""
    a_cursor(site)
    site.deployment.valkey.stop(signal.SIGKILL)
    flushed = time.monotonic()
    site.deployment.valkey.forget()
    site.deployment.valkey.start()
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic, since=flushed) == []


def a_cursor(site: Site) -> None:
    """A version that tells how far the stream was trained on."""
    if not ranges(site.deployment):
        assert another_version(site.deployment) < WHOLE_ROUND_SECONDS
