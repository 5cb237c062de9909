"""The machine itself: no room on the disk of the cache folder, and a clock that is stepped back."""

from __future__ import annotations

import errno
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .adapters import Adapters
from .checks import WHOLE_ROUND_SECONDS, amiss, another_version, lost, noticed
from .conftest import Site
from .deployment import Process
from .probes import served, waited
from .rounds import a_child
from .traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

DISK = "4m"
FOLLOW_SECONDS = 60.0
FULL_SECONDS = 10.0
STEP_SECONDS = -3600
CHUNK = b"\0" * 65536


def test_disk_full(site: Site, known: dict[str, str], adapters: Adapters, tmp_path: Path) -> None:
    """A new champion can't be fetched; the present draft serves on, and the new one once there is room."""
    place, registry = site.deployment, site.deployment.registry()
    cache = tmp_path / "cache"
    cache.mkdir()
    with small_disk(cache) as mounted:
        worker = place.serve("serve-small-disk", REDRAFT_CACHE_DIR=str(cache))
        place.ready(worker)
        with Traffic([worker.url], known) as traffic:
            before = served(worker.url)
            with no_room(worker, cache, mounted):
                version = adapters.register(registry, 600)
                registry.promote("default", version)
                time.sleep(FULL_SECONDS)
                assert served(worker.url) == before
            took = waited(lambda: bool(served(worker.url) == version), FOLLOW_SECONDS)
        site.saw_traffic(traffic)
        assert site.saw("champion served", took) < FOLLOW_SECONDS
        assert noticed(traffic) == []
        assert lost(place, traffic) == []
        assert registry.version("default", version).validation_status == "approved"
        worker.stop()


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own for a folder, where this user may mount one; else the folder as it is."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def no_room(worker: Process, folder: Path, mounted: bool) -> Iterator[None]:
    """Not a byte is free in the folder; without a disk of its own, the worker may write no file at all."""
    if mounted:
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file:
            fill(file.write)
        yield
        filler.unlink()
        return
    before = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    yield
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, before)


def fill(write: Callable[[bytes], object]) -> None:
    """Write until the disk is full."""
    for chunk in (CHUNK, CHUNK[:1]):
        try:
            while True:
                write(chunk)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def test_clock_stepped_back(site: Site, traffic: Traffic) -> None:
    """All processes' wall clocks go back an hour while a round trains, and its worker dies just then."""
    if site.wall is None:
        pytest.skip("stepping the clock of a running process needs a C compiler")
    round_id, _ = a_child(site.deployment)
    site.wall.step(STEP_SECONDS)
    (worker,) = [w for w in site.workers if f"[{round_id}] received" in w.log.read_text(errors="replace")]
    worker.kill()
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
