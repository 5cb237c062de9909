"""A real training beside serving: its priority, its waiting, and what ends it early."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redraft_queue import keys
from redraft_queue.load import ROLE, load_details
from redraft_trainer.errors import DiskFull, OutOfMemory, RoundTimeout
from redraft_trainer.rounds import run_round

from .conftest import DOMAIN, QUICK, Bench, runs, training_in

pytestmark = pytest.mark.integration

Event = Mapping[str, Any]


def at_step(step: int, act: Callable[[], None]) -> Callable[[Event], None]:
    """A progress callback that acts once, when the training has done so many steps."""
    done: list[bool] = []

    def progress(event: Event) -> None:
        if not done and event["stage"] == "train" and int(event.get("step", 0)) >= step:
            done.append(True)
            act()

    return progress


def run(bench: Bench, round_id: str, progress: Callable[[Event], None], **settings: Any) -> Any:
    context = replace(bench.context, trainer=QUICK.model_copy(update=settings))
    return run_round(context, DOMAIN, round_id, progress=progress)


def training_process(bench: Bench) -> int:
    (pid,) = training_in(bench.context.data_dir)
    return pid


@pytest.fixture
def serving(bench: Bench) -> Iterator[dict[str, int]]:
    """A serving worker's load, as it says it twice a second; requests may be put into it."""
    said, stop = {"running": 0}, threading.Event()

    def beat() -> None:
        while not stop.wait(0.1):
            details = load_details(said["running"], 0, 0.0)
            message = json.dumps({"time": time.time(), "details": details})
            bench.context.client.set(keys.heartbeat(ROLE, "host", 1), message, px=1500)
            bench.context.client.sadd(keys.HEARTBEATS, keys.heartbeat(ROLE, "host", 1))

    thread = threading.Thread(target=beat)
    thread.start()
    yield said
    stop.set()
    thread.join()


def test_a_training_waits_while_requests_run_and_goes_on_from_its_step(
    bench: Bench, serving: dict[str, int]
) -> None:
    """No step is lost or made twice, and none while it waits."""
    bench.traffic(100, seed=0)
    paused: list[tuple[int, bool]] = []
    busy = at_step(3, lambda: serving.update(running=2))

    def progress(event: Event) -> None:
        busy(event)
        if event.get("paused"):
            paused.append((event["step"], True))
            if len(paused) > 4:
                serving["running"] = 0

    # Steps that are long enough for the order to arrive before the last of them.
    slow = {"batch_size": 128, "max_steps": 40, "eval_every": 40}
    result = run(bench, "r", progress, yield_to_serving="idle", **slow)
    assert result.version == 1
    assert len({step for step, _ in paused}) == 1
    (run_,) = runs(bench)
    metrics = run_.data.metrics
    assert metrics["paused_seconds"] > 1
    assert metrics["child_peak_mb"] > 100
    stages = {"seconds_collect", "seconds_child", "seconds_load", "seconds_train", "seconds_measure"}
    assert stages <= metrics.keys()
    assert metrics["seconds_train"] + metrics["paused_seconds"] < metrics["seconds_child"]
    curve = bench.context.registry._client.get_metric_history(run_.info.run_id, "loss")
    assert [point.step for point in curve] == list(range(1, len(curve) + 1))


def test_a_training_that_is_killed_says_what_it_held(bench: Bench) -> None:
    """As the system's own killer does it; the next round trains on the same samples."""
    bench.traffic(100, seed=0)
    niceness: list[int] = []

    def killed() -> None:
        pid = training_process(bench)
        niceness.append(os.getpriority(os.PRIO_PROCESS, pid))
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(OutOfMemory, match=r"signal 9 in stage train, step \d+ and \d+ MB at its peak"):
        run(bench, "killed", at_step(2, killed), max_steps=5000, eval_every=5000)
    assert bench.context.registry.versions(DOMAIN) == []
    assert runs(bench)[0].info.status == "FAILED"
    # The launcher has handed its priority on.
    assert niceness[0] >= 10
    assert bench.run("again", max_steps=4).version == 1
    assert not bench.context.work_dir("killed").exists()
    assert runs(bench)[0].data.params["new_entries"] == "100"


def test_a_training_without_memory_says_so_and_what_to_do(bench: Bench) -> None:
    """An adapter of 28 matrices with 40 MB each, and 300 MB for all of them."""
    bench.traffic(100, seed=0)
    done: list[int] = []

    def little(event: Event) -> None:
        if event["stage"] == "load" and not done:
            pid = training_process(bench)
            done.append(pid)
            status = Path(f"/proc/{pid}/status").read_text()
            size = int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1])
            most = (size << 10) + (300 << 20)
            resource.prlimit(pid, resource.RLIMIT_AS, (most, most))

    with pytest.raises(OutOfMemory, match="batch_size"):
        run(bench, "r", little, rank=300_000)
    assert bench.context.registry.versions(DOMAIN) == []


def test_a_training_whose_files_have_no_room_says_so(bench: Bench) -> None:
    bench.traffic(100, seed=0)

    def no_room() -> None:
        resource.prlimit(training_process(bench), resource.RLIMIT_FSIZE, (4096, 4096))

    with pytest.raises(DiskFull, match="free space"):
        run(bench, "full", at_step(1, no_room), max_steps=20)
    assert bench.context.registry.versions(DOMAIN) == []
    assert bench.run("again", max_steps=4).version == 1
    assert not bench.context.work_dir("full").exists()


def test_a_round_past_its_time_limit_ends_with_what_to_do(bench: Bench) -> None:
    bench.traffic(100, seed=0)
    queue = bench.context.queue.model_copy(update={"round_time_limit_seconds": 12})
    endless = QUICK.model_copy(update={"max_steps": 10**6, "eval_every": 10**6})
    with pytest.raises(RoundTimeout, match="round_time_limit_seconds"):
        run_round(replace(bench.context, queue=queue, trainer=endless), DOMAIN, "slow")
    assert not training_in(bench.context.data_dir)
    assert bench.context.registry.versions(DOMAIN) == []
    assert bench.run("again", max_steps=4).version == 1


def test_a_round_that_finds_no_room_for_its_samples_says_so(bench: Bench) -> None:
    """In the worker's own process; the folder goes at once, as what it holds is of no use."""
    bench.traffic(100, seed=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_room(event: Event) -> None:
        if event["stage"] == "collect":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))

    try:
        with pytest.raises(DiskFull, match="data is full"):
            run(bench, "full", no_room)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not bench.context.work_dir("full").exists()
    assert bench.context.registry.versions(DOMAIN) == []
