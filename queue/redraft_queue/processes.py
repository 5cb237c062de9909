"""The two Celery processes, each run in the calling process, which has set up logging before."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from celery import Celery, signals

from redraft_queue.beat import RoundClock, RoundScheduler
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


def run_beat(app: Celery, clock: RoundClock, heartbeat: AbstractContextManager[Any] | None = None) -> None:
    """Ask for rounds until SIGTERM or SIGINT. Any number may run: each round is asked for once."""
    _keep_logging()
    beat = app.Beat(
        scheduler=partial(RoundScheduler, clock=clock),
        quiet=True,
        loglevel=logging.getLogger().getEffectiveLevel(),
    )
    with heartbeat or nullcontext():
        try:
            beat.run()
        except SystemExit:
            # How Celery's own signal handler leaves the loop.
            return


def _keep_logging() -> None:
    """A receiver of this signal is how Celery is told to configure no logging of its own."""
    signals.setup_logging.connect(_configured_already)


def _configured_already(**_: Any) -> None:
    return None
