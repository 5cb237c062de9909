"""Signs of life: each process keeps one expiring key, from a thread, so that a busy one doesn't look dead."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

import redis

from redraft_queue import keys
from redraft_queue.connection import translated

logger = logging.getLogger(__name__)

_BEATS_PER_TTL = 3
_PREFIX = "redraft:heartbeat:"
Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What one process said last. `time` is in seconds since the epoch, by its own clock."""

    role: str
    host: str
    pid: int
    time: float
    details: Details = field(default_factory=dict)


class Heartbeat:
    """`with Heartbeat(client, role, ttl_seconds, details):` beats three times per ttl until it is left.

    `details` gives a JSON-able map (domain versions, state) and is called on the beating thread. Redis may
    come and go: beating never raises and never blocks the process that it speaks for.
    """

    def __init__(
        self,
        client: redis.Redis,
        role: str,
        ttl_seconds: float,
        details: Callable[[], Details] | None = None,
    ) -> None:
        self._client = client
        self._role = role
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._key = keys.heartbeat(role, self._host, self._pid)
        self._ttl_seconds = ttl_seconds
        self._details = details
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{role}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        reachable = True
        while True:
            try:
                self._beat(self._message())
                reachable = True
            except redis.RedisError as error:
                if reachable:
                    logger.warning("the heartbeat of %s doesn't reach Redis: %s", self._role, error)
                reachable = False
            if self._stop.wait(self._ttl_seconds / _BEATS_PER_TTL):
                break
        self._say_goodbye()

    def _beat(self, message: str) -> None:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.sadd(keys.HEARTBEATS, self._key)
        pipeline.set(self._key, message, px=max(1, round(self._ttl_seconds * 1000)))
        pipeline.execute()

    def _message(self) -> str:
        try:
            details = dict(self._details()) if self._details is not None else {}
        except Exception:  # the caller's code: its fault must not make a live process look dead
            logger.exception("the heartbeat of %s could not collect its details", self._role)
            details = {}
        return json.dumps({"time": time.time(), "details": details}, default=str)

    def _say_goodbye(self) -> None:
        try:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.srem(keys.HEARTBEATS, self._key)
            pipeline.delete(self._key)
            pipeline.execute()
        except redis.RedisError as error:
            logger.debug("the heartbeat of %s could not be deleted: %s", self._role, error)


def heartbeats(client: redis.Redis) -> list[SignOfLife]:
    """Every process whose sign hasn't expired, sorted by role, host, pid. Raises StreamUnavailable."""
    signs = (_sign(name, value) for name, value in messages(client).items())
    return sorted((s for s in signs if s is not None), key=lambda s: (s.role, s.host, s.pid))


def messages(client: redis.Redis, role: str | None = None) -> dict[str, bytes]:
    """Key -> what the process said last, of all roles or of one. Raises StreamUnavailable.

    The names of processes that died are removed; one that only was late adds its own at its next beat.
    """
    start = "" if role is None else keys.heartbeats_of(role)
    with translated("list the heartbeats"):
        known = (name.decode() for name in cast("set[bytes]", client.smembers(keys.HEARTBEATS)))
        names = [name for name in known if name.startswith(start)]
        values = cast("list[bytes | None]", client.mget(names)) if names else []
        found = dict(zip(names, values, strict=True))
        gone = [name for name, value in found.items() if value is None]
        if gone:
            client.srem(keys.HEARTBEATS, *gone)
    return {name: value for name, value in found.items() if value is not None}


def _sign(key: str, value: bytes) -> SignOfLife | None:
    role, _, place = key.removeprefix(_PREFIX).partition(":")
    host, _, pid = place.rpartition(":")
    try:
        document = json.loads(value)
        return SignOfLife(role, host, int(pid), float(document["time"]), document["details"])
    except (ValueError, TypeError, KeyError):
        logger.warning("the key %s holds no heartbeat", key)
        return None
