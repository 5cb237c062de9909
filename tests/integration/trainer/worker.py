"""A process with the bench's context: `python worker.py round|celery SPEC_JSON`.

`round` runs the round "killed" and prints its stages; `celery` is a training worker.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_queue.celery_app import build_app, run_worker
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from redraft_trainer.context import TrainContext
from redraft_trainer.rounds import run_round
from redraft_trainer.settings import GateSettings, TrainerSettings
from redraft_trainer.tasks import register


def context(spec: dict[str, Any]) -> TrainContext:
    """What the test's own process has."""
    queue = QueueSettings(**spec["queue"])
    return TrainContext(
        models=ModelSettings(**spec["models"]),
        trainer=TrainerSettings(**spec["trainer"]),
        gate=GateSettings(**spec["gate"]),
        queue=queue,
        data_dir=Path(spec["data_dir"]),
        cache_dir=Path(spec["cache_dir"]),
        registry=Registry(spec["uri"]),
        client=connect(spec["redis"], queue),
    )


def main(kind: str, spec_json: str) -> int:
    """Run until the round ends, or until the worker is told to stop."""
    logging.basicConfig(level=logging.INFO)
    spec = json.loads(spec_json)
    made = context(spec)
    if kind == "round":
        run_round(made, "default", "killed", progress=lambda event: print(event["stage"], flush=True))  # noqa: T201
        return 0
    app = build_app(spec["redis"], made.queue)
    register(app, made)
    return run_worker(app)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
