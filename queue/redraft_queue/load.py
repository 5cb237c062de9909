"""How busy the serving workers of a machine are, for a training round that shares it with them.

Each serving worker says it in a short-lived heartbeat of its own role. Machines are told apart by the id of
their boot: containers of one machine have names of their own, and share its cores all the same.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from redraft_queue.heartbeat import messages

ROLE = "load"
TTL_SECONDS = 1.5
"""A worker says it three times in this long; one that is gone counts as idle after it."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Load:
    """All serving workers of one machine together."""

    workers: int = 0
    running: int = 0
    waiting: int = 0
    busy_seconds: float = 0.0
    """Time that their inference threads have worked since they started."""


def machine() -> str:
    """What tells this machine from others, the same in all of its containers."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def load_details(running: int, waiting: int, busy_seconds: float) -> dict[str, Any]:
    """What one serving worker says in its heartbeat of the role `load`."""
    return {
        "machine": machine(),
        "running": running,
        "waiting": waiting,
        "busy_seconds": round(busy_seconds, 3),
    }


def serving_load(client: redis.Redis) -> Load:
    """The load of this machine's serving workers; all zero where none says anything. Raises
    StreamUnavailable.
    """
    found = [details for value in messages(client, ROLE).values() if (details := _details(value)) is not None]
    return Load(
        workers=len(found),
        running=sum(int(one["running"]) for one in found),
        waiting=sum(int(one["waiting"]) for one in found),
        busy_seconds=sum(float(one["busy_seconds"]) for one in found),
    )


def _details(value: bytes) -> Mapping[str, Any] | None:
    """What a worker of this machine said; None for others, and for what can't be read."""
    try:
        details: Mapping[str, Any] = json.loads(value)["details"]
        numbers = [float(details[name]) for name in ("running", "waiting", "busy_seconds")]
        return details if details["machine"] == machine() and min(numbers) >= 0 else None
    except (ValueError, TypeError, KeyError):
        return None
