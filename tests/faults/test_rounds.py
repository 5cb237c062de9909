"""Training workers and their children die in a round, and rounds are asked for or delivered twice."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redraft_queue.celery_app import build_app, request_round, round_status
from redraft_queue.settings import QueueSettings

from .adapters import Adapters
from .checks import WHOLE_ROUND_SECONDS, amiss, another_version, ranges
from .conftest import Site
from .deployment import Process
from .probes import until, waited
from .rounds import WAIT_SECONDS, a_child, children, running
from .traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

CHILD_GONE_SECONDS = 30.0
END_SECONDS = 120.0
LATE_WORKER = Path(__file__).with_name("late_worker.py")

HELD = {
    "collect": r"POST .*/runs/create",
    "register": r"POST .*/model-versions/create",
    "settle": r"POST .*/model-versions/set-tag",
    "settle half-way": r"POST .*/registered-models/set-tag",
}
"""Phases by the call to MLflow that follows them: the worker waits in it, and dies."""


def left_pending(site: Site) -> list[int]:
    """Versions that no round settles in time."""
    registry = site.deployment.registry()
    waited(lambda: registry.pending("default") == [], END_SECONDS)
    return [info.version for info in registry.pending("default")]


def folder(site: Site, round_id: str) -> Path:
    """A round's files."""
    return site.deployment.folder / "data" / "rounds" / round_id


def runs_in(site: Site, round_id: str) -> Process:
    """The worker whose log says last that it took the round."""
    taken = [w for w in site.workers if f"[{round_id}] received" in w.log.read_text(errors="replace")]
    assert len(taken) == 1, [w.name for w in taken]
    return taken[0]


@pytest.mark.parametrize("phase", [*HELD, "train", "measure"])
def test_worker_killed(phase: str, site: Site, traffic: Traffic, adapters: Adapters) -> None:
    """SIGKILL to the Celery worker; the other one goes on after the dead one's lock has ended."""
    a_bad_champion(site, adapters, 500 + [*HELD, "train", "measure"].index(phase))
    hit = at_call if phase in HELD else at_child
    with hit(site, phase) as round_id:
        runs_in(site, round_id).kill()
    gone = waited(lambda: not children(folder(site, round_id)), CHILD_GONE_SECONDS)
    assert gone < CHILD_GONE_SECONDS, "the training outlives its worker"
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []


def a_bad_champion(site: Site, adapters: Adapters, seed: int) -> None:
    """One that the next round surely improves on, so that it is promoted."""
    registry = site.deployment.registry()
    registry.promote("default", adapters.register(registry, seed))


@contextmanager
def at_call(site: Site, phase: str) -> Iterator[str]:
    """A round that waits for MLflow's answer to the call that follows `phase`."""
    proxy = site.deployment.proxy
    proxy.hold = HELD[phase]
    assert proxy.held.wait(WAIT_SECONDS), f"no round came to {HELD[phase]}"
    round_id = running(site.deployment)
    assert round_id is not None
    yield round_id
    proxy.heal()


@contextmanager
def at_child(site: Site, phase: str) -> Iterator[str]:
    """A round whose child trains, or measures what it has written; it stands still for a moment."""
    round_id, child = a_child(site.deployment)
    place = folder(site, round_id)
    if phase == "measure":
        until(lambda: (place / "candidate").exists(), WAIT_SECONDS, "no candidate", pause=0.002)
    os.kill(child, signal.SIGSTOP)
    assert not (place / "result.json").exists()
    yield round_id
    os.kill(child, signal.SIGCONT)


def test_training_child_killed(site: Site, traffic: Traffic) -> None:
    """SIGKILL to the training process, as by the system when memory ends."""
    round_id, child = a_child(site.deployment)
    os.kill(child, signal.SIGKILL)
    assert odd_for_a_failure(site, round_id) == []
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []


def test_training_child_out_of_memory(site: Site, traffic: Traffic) -> None:
    """From now on it gets no memory."""
    round_id, child = a_child(site.deployment)
    resource.prlimit(child, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    assert odd_for_a_failure(site, round_id) == []
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []


def test_training_child_runs_into_its_time_limit(site: Site, traffic: Traffic) -> None:
    """It stands still; the worker ends it at the limit."""
    for worker in site.workers:
        worker.stop()
    limit = {"REDRAFT_QUEUE__ROUND_TIME_LIMIT_SECONDS": "15"}
    impatient = site.deployment.worker("worker-impatient", **limit)
    round_id, child = a_child(site.deployment)
    os.kill(child, signal.SIGSTOP)
    assert odd_for_a_failure(site, round_id) == []
    assert not children(folder(site, round_id))
    impatient.stop()
    site.heal()
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []


def odd_for_a_failure(site: Site, round_id: str) -> list[str]:
    """What is otherwise than with a round that failed, said why in words, and left no version."""
    app = build_app(site.deployment.valkey.url, QueueSettings())
    until(lambda: round_status(app, round_id).finished, END_SECONDS, "the round does not end")
    status = round_status(app, round_id)
    app.close()
    odd = [] if status.state == "FAILURE" else [f"the round ended as {status.state}"]
    error = status.details.get("error", "")
    if not error or "Traceback" in error:
        odd.append(f"the round's error is {error!r}")
    made = [info.version for info in ranges(site.deployment) if info.tags.get("round_id") == round_id]
    return odd + [f"version {version} came of it" for version in made]


def test_two_beats(site: Site, traffic: Traffic) -> None:
    """Both look at the same clock; each round is asked for by one, and one is enough."""
    second = site.deployment.beat("beat-second")
    site.deployment.heard(second)
    moment, before = time.monotonic(), asked(site, site.clock, second)
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    passed = time.monotonic() - moment
    # One more at either end of the time that was looked at, whatever its length.
    assert asked(site, site.clock, second) - before <= passed / 5 + 2
    site.clock.kill()
    left = asked(site, second)
    assert waited(lambda: asked(site, second) > left, END_SECONDS) < END_SECONDS, "the second beat is idle"
    second.stop()
    site.heal()
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []


def asked(site: Site, *clocks: Process) -> int:
    """Rounds that these beats have asked for."""
    return sum(
        clock.log.read_text(errors="replace").count("of domain default is asked for") for clock in clocks
    )


def test_message_delivered_twice(site: Site, traffic: Traffic) -> None:
    """The broker takes each running round for lost after 3 s and hands it to the other worker."""
    for worker in site.workers:
        worker.stop()
    short = {"REDRAFT_QUEUE__VISIBILITY_TIMEOUT_SECONDS": "3"}
    late = [site.deployment.run(f"late-{n}", script=LATE_WORKER, **short) for n in range(2)]
    again = "was delivered again while it runs; skipped"
    until(lambda: any(again in w.log.read_text() for w in late), WAIT_SECONDS, "no second delivery")
    assert site.saw("next version", another_version(site.deployment)) < WHOLE_ROUND_SECONDS
    for worker in late:
        worker.stop()
    site.heal()
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []


def test_asked_twice_with_one_id(site: Site, traffic: Traffic) -> None:
    """Two messages of one round lie in the queue before any worker takes them."""
    app = build_app(site.deployment.valkey.url, QueueSettings())
    round_id = request_round(app, "default", force=True)
    request_round(app, "default", force=True, round_id=round_id)
    until(lambda: round_status(app, round_id).finished, WAIT_SECONDS, "the round does not end")
    assert round_status(app, round_id).state == "SUCCESS"
    app.close()
    assert amiss(site.deployment, traffic) == []
    assert left_pending(site) == []
