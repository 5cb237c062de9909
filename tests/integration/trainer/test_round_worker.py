"""Rounds as Celery tasks in a real worker, and what many of them cost the worker."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redraft_queue.celery_app import build_app, request_round, round_status
from redraft_trainer import rounds
from redraft_trainer.process import run_child
from redraft_trainer.settings import TrainerSettings

from .conftest import DOMAIN, QUICK, Bench, spec, wait_until

pytestmark = pytest.mark.integration

WORKER = Path(__file__).with_name("worker.py")


@contextmanager
def celery_worker(bench: Bench, redis_url: str) -> Iterator[None]:
    """A training worker in a process of its own."""
    process = subprocess.Popen([sys.executable, str(WORKER), "celery", spec(bench, redis_url)])
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def with_settings(bench: Bench, trainer: TrainerSettings) -> Bench:
    return replace(bench, context=replace(bench.context, trainer=trainer))


def test_a_task_ends_in_success_or_failure_with_its_reason(bench: Bench, redis_url: str) -> None:
    """A ruined training is a FAILURE of its task that registers nothing, and its samples serve later."""
    bench.traffic(80, seed=0)
    app = build_app(redis_url, bench.context.queue)
    states: list[str] = []

    def ended(round_id: str) -> bool:
        states.append(round_status(app, round_id).state)
        return round_status(app, round_id).finished

    mad = with_settings(bench, QUICK.model_copy(update={"learning_rate": 1e9}))
    with celery_worker(mad, redis_url):
        failed = request_round(app, DOMAIN)
        wait_until(lambda: ended(failed), "the failing round does not end", 120)
    status = round_status(app, failed)
    assert status.state == "FAILURE"
    assert "learning_rate" in status.details["error"]
    assert bench.context.registry.versions(DOMAIN) == []
    assert "PROGRESS" in states

    sane = with_settings(bench, QUICK.model_copy(update={"max_steps": 4}))
    with celery_worker(sane, redis_url):
        done = request_round(app, DOMAIN)
        wait_until(lambda: ended(done), "the round does not end", 120)
    status = round_status(app, done)
    assert status.state == "SUCCESS"
    keys = ("decision", "reason", "version", "acceptance_rate", "champion_acceptance_rate", "gain")
    numbers = {"gain_ci_low", "gain_ci_high", "heldout_requests", "heldout_tokens", "tokens_added"}
    assert set(keys) | numbers == set(status.details)
    assert status.details["version"] == 1


def test_many_rounds_leave_the_worker_as_small_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own share of 15 rounds; each training is a process that takes its memory with it.

    The first round is real; the others get its result, as training them all would take minutes and tell
    nothing about this process.
    """
    kept = bench.context.data_dir / "kept"
    results: list[dict[str, Any]] = []

    def once(folder: Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not results:
            results.append(run_child(folder, *args, **kwargs))
            shutil.copytree(folder / "candidate", kept)
        else:
            shutil.copytree(kept, folder / "candidate")
        return results[0]

    monkeypatch.setattr(rounds, "run_child", once)
    sizes = []
    for seed in range(15):
        bench.traffic(80, seed=seed)
        assert bench.run(f"r{seed}", max_steps=2).version == seed + 1
        sizes.append(_resident_kilobytes())
    assert sizes[-1] <= 1.1 * sizes[2]


def _resident_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
