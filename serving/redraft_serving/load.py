"""How busy this serving worker is, said where a training round on the same machine hears it."""

from __future__ import annotations

from typing import Any

import redis
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.load import ROLE, TTL_SECONDS, load_details

from redraft_serving.engine.interface import Engine

IDLE = "idle"
"""The phase of the inference thread in which it waits for work."""


def load_heartbeat(client: redis.Redis, engine: Engine) -> Heartbeat:
    """A context manager that tells the engine's load twice a second while it is entered.

    Where Redis is away nobody hears it, and training goes on; requests never wait for it.
    """
    return Heartbeat(client, ROLE, TTL_SECONDS, lambda: load_of(engine))


def load_of(engine: Engine) -> dict[str, Any]:
    """Requests that run and wait, and the seconds that the inference thread has worked."""
    found = engine.statistics()
    busy = sum(seconds for phase, seconds in found.seconds.items() if phase != IDLE)
    return load_details(found.running, found.waiting, busy)
