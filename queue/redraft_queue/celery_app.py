"""The Celery application, and everything that is done with it, from one module.

One task, `redraft.train_round`, on one queue, run by a solo-pool worker: the round itself is a child process,
and a process that may touch CUDA must not fork. Celery enforces no time limit in a solo pool, so the round
keeps its own. While a task runs, a solo worker answers no remote control; its heartbeat key tells it lives.

A task is acknowledged when it ends, so a dead worker's task is delivered again, and one that runs past the
visibility timeout is delivered twice. The task's id is the round's id: with it and the round lock a second
delivery does no work.
"""

from __future__ import annotations

from celery import Celery

from redraft_queue.beat import RoundClock
from redraft_queue.celery_conf import QUEUE, TRAIN_ROUND, configuration
from redraft_queue.processes import run_beat, run_worker
from redraft_queue.rounds import (
    Progress,
    RoundStatus,
    RunRound,
    register_train_round,
    request_round,
    round_status,
    stopping,
)
from redraft_queue.settings import QueueSettings

__all__ = [
    "QUEUE",
    "TRAIN_ROUND",
    "Progress",
    "RoundClock",
    "RoundStatus",
    "RunRound",
    "build_app",
    "register_train_round",
    "request_round",
    "round_status",
    "run_beat",
    "run_worker",
    "stopping",
]


def build_app(redis_url: str, settings: QueueSettings) -> Celery:
    """The application for workers, beat and those who ask for rounds.

    Connects to nothing. Its keys stand under `keys.CELERY_PREFIX`.
    """
    app = Celery("redraft", set_as_current=False)
    app.conf.update(configuration(redis_url, settings))
    return app
