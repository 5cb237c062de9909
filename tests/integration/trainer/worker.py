"""A process with the bench's context: `python worker.py round|celery SPEC_JSON [STAGE]`.

`round` runs the round "killed", prints its stages, and stays in STAGE until it is killed; `celery` is a
training worker.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from redraft_models.registry import Registry, VersionInfo
from redraft_models.settings import ModelSettings
from redraft_queue.celery_app import build_app, run_worker
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from redraft_trainer.context import TrainContext
from redraft_trainer.rounds import run_round
from redraft_trainer.settings import GateSettings, TrainerSettings
from redraft_trainer.tasks import register


class Settling(Registry):
    """A registry that tells when a version is about to be settled, and waits there for its end."""

    def settle(self, domain: str, version: int, canary: bool = False) -> VersionInfo:
        reached("settle", "settle")
        return super().settle(domain, version, canary)


def reached(stage: str, last: str | None) -> None:
    """Print a stage; the last one is where this process stays."""
    print(stage, flush=True)  # noqa: T201
    if stage == last:
        time.sleep(600)


def context(spec: dict[str, Any], stage: str | None) -> TrainContext:
    """What the test's own process has."""
    queue = QueueSettings(**spec["queue"])
    return TrainContext(
        models=ModelSettings(**spec["models"]),
        trainer=TrainerSettings(**spec["trainer"]),
        gate=GateSettings(**spec["gate"]),
        queue=queue,
        data_dir=Path(spec["data_dir"]),
        cache_dir=Path(spec["cache_dir"]),
        registry=(Settling if stage == "settle" else Registry)(spec["uri"]),
        client=connect(spec["redis"], queue),
    )


def main(kind: str, spec_json: str, stage: str | None = None) -> int:
    """Run until the round ends, or until the worker is told to stop."""
    logging.basicConfig(level=logging.INFO)
    spec = json.loads(spec_json)
    made = context(spec, stage)
    if kind == "round":
        run_round(made, "default", "killed", progress=lambda event: reached(event["stage"], stage))
        return 0
    app = build_app(spec["redis"], made.queue)
    register(app, made)
    return run_worker(app)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
