"""Rounds that are killed or lose their lock: one version in the end, and nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redraft_models.registry import Registry
from redraft_queue.lock import RoundLock
from redraft_trainer import rounds

from .conftest import DOMAIN, Bench, runs, spec, training_in, wait_until

pytestmark = pytest.mark.integration

WORKER = Path(__file__).with_name("worker.py")


def test_a_lost_lock_ends_the_round_without_a_version(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.traffic(80, seed=0)

    class Lost(RoundLock):
        def __enter__(self) -> Lost:
            super().__enter__()
            self.lost.set()
            return self

    monkeypatch.setattr(rounds, "RoundLock", Lost)
    with pytest.raises(rounds.LockLost, match="lock"):
        bench.run("r")
    assert bench.context.registry.versions(DOMAIN) == []


def test_a_round_killed_between_registering_and_settling_is_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.traffic(80, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "settle", _die)
        with pytest.raises(KeyboardInterrupt):
            bench.run("r", max_steps=4)
    registry = bench.context.registry
    assert registry.version(DOMAIN, 1).tags["validation_status"] == "pending"
    assert registry.champion(DOMAIN) is None
    result = bench.run("r", max_steps=4)
    assert (result.decision, result.version) == ("promoted", 1)
    champion = registry.champion(DOMAIN)
    assert champion is not None
    assert champion.version == 1
    assert len(registry.versions(DOMAIN)) == 1
    assert not bench.context.work_dir("r").exists()
    assert runs(bench)[0].info.status == "FINISHED"


def _die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["collect", "train", "measure", "register", "settle"])
def test_a_worker_killed_at_any_stage_leaves_one_version_and_one_run(
    bench: Bench, redis_url: str, stage: str
) -> None:
    """When its round is delivered again. What is trained on is what was planned before the kill."""
    bench.traffic(80, seed=0)
    context = bench.context
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), "round", spec(bench, redis_url), stage],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.strip() == stage:
            break
    plan = json.loads((context.work_dir("killed") / "plan.json").read_text())
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    wait_until(lambda: not training_in(context.data_dir), "the training process outlives its worker")
    late = bench.traffic(30, seed=9)
    wait_until(
        lambda: not context.client.exists("redraft:lock:round:default"), "the dead worker's lock stays"
    )
    assert len(context.registry.versions(DOMAIN)) == (stage == "settle")
    result = bench.run("killed")
    assert result.version == 1
    (version,) = context.registry.versions(DOMAIN)
    # The same range as before the kill; what came later is the next round's.
    assert version.tags["stream_last_id"] == plan["last_id"]
    assert version.tags["validation_status"] != "pending"
    (run,) = runs(bench)
    assert run.info.status == "FINISHED"
    following = bench.stream.backlog(
        DOMAIN, version.tags["stream_last_id"], int(version.tags["stream_last_ordinal"])
    )
    assert (following.unseen, following.lost) == (len(late), 0)
    assert not list((context.data_dir / "rounds").iterdir())
