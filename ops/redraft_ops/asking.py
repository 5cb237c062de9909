"""A training round asked of the running workers, and its progress until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from redraft_ops.errors import RoundNotDone
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from celery import Celery

LOOK_SECONDS = 0.5
Show = Callable[[Mapping[str, Any]], None]


def ask(stack: Stack, domain: str, force: bool) -> tuple[Celery, str]:
    """Ask for a round; returns the application to look it up with, and the round's id.

    Raises StreamUnavailable.
    """
    from redraft_queue.celery_app import build_app, request_round

    app = build_app(stack.redis_url, stack.settings.queue)
    return app, request_round(app, domain, force=force)


def has_worker(stack: Stack) -> bool:
    """Whether anybody is there to take up a round."""
    from redraft_queue.heartbeat import heartbeats
    from redraft_queue.stream import connect

    signs = heartbeats(connect(stack.redis_url, stack.settings.queue))
    return any(sign.role == "trainer" for sign in signs)


def follow(app: Celery, round_id: str, show: Show) -> dict[str, Any]:
    """The round's result, once it has ended; `show` gets its progress. Raises RoundNotDone.

    A look that Redis does not answer is tried again: the round goes on without us.
    """
    from redraft_queue.celery_app import round_status
    from redraft_queue.errors import StreamUnavailable

    while True:
        try:
            status = round_status(app, round_id)
        except StreamUnavailable as error:
            show({"stage": f"waiting for Redis ({error})"})
            time.sleep(LOOK_SECONDS)
            continue
        if status.finished:
            break
        show(status.details if status.state == "PROGRESS" else {"stage": status.state.lower()})
        time.sleep(LOOK_SECONDS)
    if status.state != "SUCCESS":
        raise RoundNotDone(f"round {round_id} failed: {status.details.get('error', status.state.lower())}")
    return dict(status.details)
