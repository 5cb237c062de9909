"""A serving worker dies in the middle of a canary, and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .adapters import Adapters
from .checks import in_stream, noticed
from .conftest import Site
from .deployment import Process
from .probes import answers, served, until
from .traffic import Record, Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

DOMAIN = "canary"
FOLLOW_SECONDS, DECIDE_SECONDS, BACK_SECONDS = 60.0, 240.0, 120.0
LAST_WORDS_SECONDS = 3.0
"""What a worker answered just before it was killed it may not have written yet."""

# Times on a busy test machine say little: what decides here is acceptance.
QUICK = {
    "REDRAFT_DOMAINS": f'["{DOMAIN}"]',
    "REDRAFT_SERVING__CANARY__SHARE": "0.4",
    "REDRAFT_SERVING__CANARY__WATCH_SHARE": "0",
    "REDRAFT_SERVING__CANARY__MIN_REQUESTS": "30",
    "REDRAFT_SERVING__CANARY__MIN_TESTED_TOKENS": "200",
    "REDRAFT_SERVING__CANARY__MAX_ACCEPTANCE_LOSS": "0.2",
    "REDRAFT_SERVING__CANARY__MAX_SLOWDOWN": "0.9",
    "REDRAFT_SERVING__CANARY__MAX_REQUESTS": "100000",
}


@pytest.fixture
def pair_of_workers(site: Site) -> Iterator[list[Process]]:
    """Two workers that try versions on live traffic."""
    workers = [site.deployment.serve(f"serve-canary-{n}", **QUICK) for n in range(2)]
    for worker in workers:
        site.deployment.ready(worker)
    yield workers
    for worker in workers:
        worker.stop()


def test_serving_worker_killed_in_a_canary(
    site: Site, pair_of_workers: list[Process], known: dict[str, str], adapters: Adapters
) -> None:
    """Clients move on to the other worker; the canary is decided once, and both follow."""
    registry, urls = site.deployment.registry(), [worker.url for worker in pair_of_workers]
    champion = adapters.register(registry, 700, domain=DOMAIN)
    registry.promote(DOMAIN, champion)
    until(lambda: all(served(url, DOMAIN) == champion for url in urls), FOLLOW_SECONDS, "no champion")
    tags = {"decision": "promoted", "validation_status": "pending", "parent_version": champion}
    challenger = adapters.register(registry, 700, domain=DOMAIN, tags=tags)
    registry.settle(DOMAIN, challenger, canary=True)
    with Traffic(urls, known, threads=4, pause_seconds=0.05, domain=DOMAIN) as traffic:
        until(lambda: tried(traffic, challenger), FOLLOW_SECONDS, "no request of the challenger")
        killed = time.monotonic()
        pair_of_workers[0].kill()
        back = site.saw("worker back", again(site, pair_of_workers))
        until(lambda: decided(site, challenger), DECIDE_SECONDS, "the canary is not decided")
        site.saw("canary decided", time.monotonic() - killed)
        until(lambda: all(served(url, DOMAIN) == challenger for url in urls), FOLLOW_SECONDS, "one lags")
    site.saw_traffic(traffic)
    assert noticed(traffic) == []
    assert back < BACK_SECONDS
    info = registry.version(DOMAIN, challenger)
    assert (info.tags["canary"], info.validation_status) == ("passed", "approved")
    assert {str(champion), str(challenger)} <= {record.version for record in traffic.records}
    assert any(record.moved for record in traffic.records)
    missing = unwritten(site, traffic)
    assert all(abs(record.started + record.seconds - killed) < LAST_WORDS_SECONDS for record in missing)


def again(site: Site, workers: list[Process]) -> float:
    """Start the killed worker as it was; returns the seconds until it answers."""
    workers[0] = site.deployment.serve(workers[0].name, port=workers[0].port, **QUICK)
    return until(lambda: answers(workers[0].url), BACK_SECONDS, "the killed worker is not back")


def tried(traffic: Traffic, version: int) -> bool:
    """Whether a version has served a request."""
    return str(version) in {record.version for record in list(traffic.records)}


def decided(site: Site, version: int) -> bool:
    """Whether the canary has ended."""
    return site.deployment.registry().version(DOMAIN, version).tags.get("canary") != "running"


def unwritten(site: Site, traffic: Traffic) -> list[Record]:
    """Answered requests without a sample, once the living workers have written theirs."""
    time.sleep(LAST_WORDS_SECONDS)
    written = {request for _, request in in_stream(site.deployment, DOMAIN)}
    return [record for record in traffic.records if record.id not in written]
