"""The body of the Celery task: a round with its result as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task
from redraft_queue.celery_app import register_train_round

from redraft_trainer.context import TrainContext
from redraft_trainer.priority import give_way
from redraft_trainer.rounds import run_round


def register(app: Celery, context: TrainContext) -> Task:
    """Bind training rounds to `app`; the task's id is the round's id."""

    def run(
        domain: str, round_id: str, force: bool, progress: Callable[[Mapping[str, Any]], None]
    ) -> Mapping[str, Any]:
        # What a round does in this process, reading samples and drawing pictures, is not urgent either.
        give_way()
        return run_round(context, domain, round_id, force=force, progress=progress).to_dict()

    return register_train_round(app, run, context.client)
