"""One deployment for all faults: each test finds it whole and leaves it so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .adapters import Adapters
from .clock import Clock
from .deployment import Deployment, Process
from .traffic import Traffic, oracle

SEED_SECONDS = 3.0
"""Traffic before a fault."""


@dataclass
class Site:
    """The deployment and its processes by role."""

    deployment: Deployment
    serving: Process
    workers: list[Process]
    clock: Process
    wall: Clock | None
    """The wall clock of all its processes, where a test can step it."""
    seen: dict[str, float] = field(default_factory=dict)
    """What the present test has measured, for the table in docs/reliability.md (`--junitxml` keeps it)."""

    def saw(self, what: str, seconds: float) -> float:
        """Note how long something took."""
        self.seen[what] = round(seconds, 1)
        return seconds

    def saw_traffic(self, traffic: Traffic) -> None:
        """Note how many requests there were, and the slowest one's time."""
        self.seen["requests"] = len(traffic.records)
        self.seen["slowest"] = round(max((r.seconds for r in traffic.records), default=0.0), 2)

    def heal(self) -> None:
        """Bring back whatever an earlier test has left stopped."""
        place = self.deployment
        place.proxy.heal()
        place.proxy.up()
        place.valkey.thaw()
        for server in (place.valkey, place.mlflow):
            if not server.running:
                server.start()
        place.valkey.client().config_set("maxmemory", 0)
        if not self.serving.alive:
            self.serving = place.serve(port=self.serving.port)
        self.workers = [w if w.alive else place.worker(w.name) for w in self.workers]
        if not self.clock.alive:
            self.clock = place.beat()
        place.ready(self.serving)
        for process in (*self.workers, self.clock):
            place.heard(process)


@pytest.fixture(scope="session")
def pair(toy_pair: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    """Target and draft."""
    return toy_pair("learn")


@pytest.fixture(scope="session")
def known(pair: tuple[Path, Path]) -> dict[str, str]:
    """Prompt -> the target's own text."""
    return oracle(pair[0])


@pytest.fixture(scope="session")
def adapters(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    """Versions made by hand."""
    return Adapters(pair, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def _site(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    wall = Clock(tmp_path_factory.mktemp("clock"))
    found = wall.build()
    extra = wall.environment if found else {}
    place = Deployment.make(tmp_path_factory.mktemp("deployment"), pair, extra)
    try:
        place.start_servers()
        serving = place.serve()
        workers = [place.worker("worker-0"), place.worker("worker-1")]
        site = Site(place, serving, workers, place.beat(), wall if found else None)
        site.heal()
        yield site
    finally:
        place.close()


@pytest.fixture
def site(_site: Site, record_property: Callable[[str, object], None]) -> Iterator[Site]:
    """The deployment, whole."""
    _site.heal()
    _site.seen.clear()
    yield _site
    for what, value in _site.seen.items():
        record_property(what, value)
    sys.stdout.write(_site.deployment.logs())  # shown where the test fails


@pytest.fixture
def traffic(site: Site, known: dict[str, str]) -> Iterator[Traffic]:
    """Traffic that has begun and goes on until the test ends it."""
    with Traffic([site.serving.url], known) as running:
        time.sleep(SEED_SECONDS)
        yield running
        site.saw_traffic(running)
