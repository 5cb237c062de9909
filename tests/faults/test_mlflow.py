"""MLflow is stopped, slow, out of order, or hands out a version that is rotten, while requests run."""

from __future__ import annotations

import time

import pytest

from .adapters import ROTTEN, Adapters
from .checks import WHOLE_ROUND_SECONDS, amiss, another_version, noticed
from .conftest import Site
from .probes import metric, served, until, waited
from .traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

FAULT_SECONDS = 10.0
SLOW_SECONDS = 15.0
"""Longer than any read of the registry may take."""
FOLLOW_SECONDS = 60.0
REFUSED = "redraft_swaps_total", 'result="rejected"'


def followed(site: Site, adapters: Adapters, seed: int) -> float:
    """Seconds until a champion that is chosen now is served; infinite where it is not in time."""
    registry = site.deployment.registry()
    version = adapters.register(registry, seed)
    registry.promote("default", version)
    took = waited(lambda: bool(served(site.serving.url) == version), FOLLOW_SECONDS)
    return site.saw("champion served", took)


def test_mlflow_stopped(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Connections are refused; the present draft serves on."""
    before = served(site.serving.url)
    site.deployment.proxy.down()
    site.deployment.mlflow.stop()
    time.sleep(FAULT_SECONDS)
    assert served(site.serving.url) == before
    site.deployment.mlflow.start()
    site.deployment.proxy.up()
    assert followed(site, adapters, 101) < FOLLOW_SECONDS
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []


def test_mlflow_slow(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Each answer takes longer than anybody waits."""
    site.deployment.proxy.slow_seconds = SLOW_SECONDS
    time.sleep(SLOW_SECONDS)
    site.deployment.proxy.slow_seconds = 0.0
    assert followed(site, adapters, 102) < FOLLOW_SECONDS
    assert amiss(site.deployment, traffic) == []


def test_mlflow_answers_500(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Every call fails."""
    site.deployment.proxy.status = 500
    time.sleep(FAULT_SECONDS)
    site.deployment.proxy.status = None
    assert followed(site, adapters, 103) < FOLLOW_SECONDS
    assert amiss(site.deployment, traffic) == []


def test_mlflow_cuts_answers_short(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Every answer ends in its middle, the files' too."""
    site.deployment.proxy.cut = True
    time.sleep(FAULT_SECONDS)
    site.deployment.proxy.cut = False
    assert followed(site, adapters, 104) < FOLLOW_SECONDS
    assert amiss(site.deployment, traffic) == []


@pytest.mark.parametrize("fault", ROTTEN)
def test_a_rotten_champion(fault: str, site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """The alias moves to it; it is refused, tagged with the reason, and the present draft serves on."""
    registry = site.deployment.registry()
    good = adapters.register(registry, 200 + ROTTEN.index(fault))
    registry.promote("default", good)
    until(lambda: served(site.serving.url) == good, FOLLOW_SECONDS, "the champion is not served")
    before = metric(site.serving.url, *REFUSED)
    rotten = adapters.register(registry, 300 + ROTTEN.index(fault), fault)
    registry.promote("default", rotten)
    assert "refused" in refusal(site, rotten)
    assert metric(site.serving.url, *REFUSED) == before + 1
    assert served(site.serving.url) != rotten
    traffic.stop()
    assert noticed(traffic) == []
    assert str(rotten) not in {record.version for record in traffic.records}


def test_an_artifact_spoilt_on_its_way(site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """Bits of the files turn over between MLflow and the worker."""
    before = metric(site.serving.url, *REFUSED)
    site.deployment.proxy.spoil = r"mlflow-artifacts/artifacts/.*safetensors"
    registry = site.deployment.registry()
    version = adapters.register(registry, 400)
    registry.promote("default", version)
    assert "refused" in refusal(site, version)
    assert metric(site.serving.url, *REFUSED) == before + 1
    traffic.stop()
    assert noticed(traffic) == []
    assert str(version) not in {record.version for record in traffic.records}


def refusal(site: Site, version: int) -> str:
    """The reason that the worker has tagged the version rejected with; empty where it has not in time."""
    registry = site.deployment.registry()
    took = waited(
        lambda: registry.version("default", version).validation_status == "rejected", FOLLOW_SECONDS
    )
    if site.saw("refused", took) > FOLLOW_SECONDS:
        return ""
    return registry.version("default", version).tags["decision_reason"]
