"""The two Celery processes, each run in the calling process, which has set up logging before."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from celery import Celery, signals

from redraft_queue.celery_conf import QUEUE


def run_worker(app: Celery, heartbeat: AbstractContextManager[Any] | None = None) -> int:
    """Work on training rounds until SIGTERM or SIGINT; returns the exit code.

    A running round is told to stop at its next progress report and goes back to the queue. `heartbeat` is
    held all along. Where the broker is away, waits for it.
    """
    _keep_logging()
    worker = app.Worker(
        hostname=f"redraft-{os.getpid()}@{socket.gethostname()}",
        pool="solo",
        concurrency=1,
        queues=[QUEUE],
        quiet=True,
        loglevel=logging.getLogger().getEffectiveLevel(),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    with heartbeat or nullcontext():
        worker.start()
    return int(worker.exitcode or 0)


def run_beat(app: Celery, schedule_file: Path, heartbeat: AbstractContextManager[Any] | None = None) -> None:
    """Ask for rounds of `build_app`'s domains by the clock until SIGTERM or SIGINT.

    `schedule_file` keeps the times over a restart. Run exactly one per broker; a second only asks for rounds
    that are then skipped.
    """
    _keep_logging()
    schedule_file.parent.mkdir(parents=True, exist_ok=True)
    beat = app.Beat(schedule=str(schedule_file), quiet=True, loglevel=logging.getLogger().getEffectiveLevel())
    with heartbeat or nullcontext():
        try:
            beat.run()
        except SystemExit:
            # How Celery's own signal handler leaves the loop, after it has saved the schedule.
            return


def _keep_logging() -> None:
    """A receiver of this signal is how Celery is told to configure no logging of its own."""
    signals.setup_logging.connect(_configured_already)


def _configured_already(**_: Any) -> None:
    return None
