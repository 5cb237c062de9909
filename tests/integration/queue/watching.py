"""What the processes of a test have done, as Redis and their logs tell it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
from celery import Celery
from redraft_queue.celery_app import RoundStatus, round_status
from redraft_queue.settings import QueueSettings

Spawn = Callable[..., subprocess.Popen[bytes]]
SETTINGS = QueueSettings(heartbeat_ttl_seconds=3.0)
LATE = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


def logs(folder: Path) -> str:
    """What the processes of this test have logged."""
    return "".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("*.log")))


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for `condition`; fails when it doesn't come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not true after {seconds} s"
        time.sleep(0.05)


def finished(app: Celery, round_id: str, seconds: float = 30.0) -> RoundStatus:
    until(lambda: round_status(app, round_id).finished, seconds)
    return round_status(app, round_id)


def starts(client: redis.Redis) -> list[str]:
    return [
        line.decode().split()[1] for line in client.lrange("test:rounds", 0, -1) if line.startswith(b"start")
    ]


def messages(client: redis.Redis) -> list[bytes]:
    return client.lrange("redraft:celery:redraft", 0, -1)


def members(client: redis.Redis, key: bytes) -> int:
    """Entries of a set, a sorted set or a list."""
    count = {b"set": client.scard, b"zset": client.zcard, b"list": client.llen}.get(client.type(key))
    return int(count(key)) if count else 1
