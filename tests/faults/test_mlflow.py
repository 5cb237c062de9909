"""MLflow is stopped, slow, out of order, or hands out a version that is rotten, while requests run."""

from __future__ import annotations

import time

import pytest

from .adapters import ROTTEN, Adapters
from .checks import another_version, nobody_noticed, nothing_lost, trained_once
from .conftest import Site
from .probes import metric, served, until
from .traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

FAULT_SECONDS = 10.0
SLOW_SECONDS = 15.0
"""Longer than any read of the registry may take."""
FOLLOW_SECONDS = 60.0


def catches_up(site: Site, traffic: Traffic, adapters: Adapters, seed: int, trains: bool = True) -> None:
    """A champion chosen once MLflow is back is served, and rounds go on where `trains` asks for it."""
    registry = site.deployment.registry()
    version = adapters.register(registry, seed)
    registry.promote("default", version)
    followed = until(lambda: served(site.serving.url) == version, FOLLOW_SECONDS, "it is not served")
    site.saw("champion served", followed)
    if trains:
        site.saw("next version", another_version(site.deployment))
    traffic.stop()
    nobody_noticed(traffic)
    nothing_lost(site.deployment, traffic)
    trained_once(site.deployment)


def test_mlflow_stopped(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Connections are refused; the present draft serves on."""
    before = served(site.serving.url)
    site.deployment.proxy.down()
    site.deployment.mlflow.stop()
    time.sleep(FAULT_SECONDS)
    assert served(site.serving.url) == before
    site.deployment.mlflow.start()
    site.deployment.proxy.up()
    catches_up(site, traffic, adapters, 101)


def test_mlflow_slow(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Each answer takes longer than anybody waits."""
    site.deployment.proxy.slow_seconds = SLOW_SECONDS
    time.sleep(SLOW_SECONDS)
    site.deployment.proxy.slow_seconds = 0.0
    catches_up(site, traffic, adapters, 102, trains=False)


def test_mlflow_answers_500(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Every call fails."""
    site.deployment.proxy.status = 500
    time.sleep(FAULT_SECONDS)
    site.deployment.proxy.status = None
    catches_up(site, traffic, adapters, 103, trains=False)


def test_mlflow_cuts_answers_short(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Every answer ends in its middle, the files' too."""
    site.deployment.proxy.cut = True
    time.sleep(FAULT_SECONDS)
    site.deployment.proxy.cut = False
    catches_up(site, traffic, adapters, 104, trains=False)


@pytest.mark.parametrize("fault", ROTTEN)
def test_a_rotten_champion(fault: str, site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """The alias moves to it; it is refused, tagged with the reason, and the present draft serves on."""
    registry = site.deployment.registry()
    good = adapters.register(registry, 200 + ROTTEN.index(fault))
    registry.promote("default", good)
    until(lambda: served(site.serving.url) == good, FOLLOW_SECONDS, "the champion is not served")
    rotten = adapters.register(registry, 300 + ROTTEN.index(fault), fault)
    registry.promote("default", rotten)
    refused(site, rotten)
    assert served(site.serving.url) != rotten
    traffic.stop()
    nobody_noticed(traffic)
    assert str(rotten) not in {record.version for record in traffic.records}


def test_an_artifact_spoilt_on_its_way(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Bits of the files turn over between MLflow and the worker."""
    site.deployment.proxy.spoil = r"mlflow-artifacts/artifacts/.*safetensors"
    registry = site.deployment.registry()
    version = adapters.register(registry, 400)
    registry.promote("default", version)
    refused(site, version)
    traffic.stop()
    nobody_noticed(traffic)
    assert str(version) not in {record.version for record in traffic.records}


def refused(site: Site, version: int) -> None:
    """The worker tags the version rejected, and counts it."""
    registry = site.deployment.registry()
    took = until(
        lambda: registry.version("default", version).validation_status == "rejected",
        FOLLOW_SECONDS,
        "it is not refused",
    )
    site.saw("refused", took)
    assert "refused" in registry.version("default", version).tags["decision_reason"]
    assert metric(site.serving.url, "redraft_swaps_total") > 0
