"""One training round per domain: a lock that lives as long as its holder beats."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self, cast

import redis

from redraft_queue import keys
from redraft_queue.connection import translated
from redraft_queue.errors import LockHeld

logger = logging.getLogger(__name__)

_EXTEND = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
# A key's end is a time of the server's wall clock: set back an hour, a dead holder's lock would stay an hour.
_HELD = """
local left = redis.call('PTTL', KEYS[1])
if left > 2 * tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return left == -2 and 0 or 1
"""
_BEATS_PER_TTL = 4
_LOST_AFTER = 0.75


class RoundLock:
    """`with RoundLock(client, domain, round_id, ttl_seconds) as lock:` holds the domain for one round.

    A thread extends the lock four times per `ttl_seconds`; a dead holder's lock is free after that time. If
    the server's clock was set back it is free that time after somebody asks for it.
    `lost` is set when the lock is or may soon be somebody else's: it was taken over or deleted, or Redis
    hasn't answered for three quarters of the ttl. A round looks at `lost` before it publishes anything.
    Entering raises LockHeld or StreamUnavailable; leaving never raises. The token makes a release by an old
    holder harmless (redis.io, "Distributed locks").
    """

    def __init__(self, client: redis.Redis, domain: str, round_id: str, ttl_seconds: float) -> None:
        self._client = client
        self._domain = domain
        self._key = keys.round_lock(domain)
        self._round_id = round_id
        self._ttl_seconds = ttl_seconds
        self._token = f"{round_id} {uuid.uuid4().hex}".encode()
        self._extend = client.register_script(_EXTEND)
        self._release = client.register_script(_RELEASE)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = threading.Event()

    def __enter__(self) -> Self:
        asked = time.monotonic()
        with translated(f"take the round lock of domain {self._domain}"):
            taken = self._client.set(self._key, self._token, nx=True, px=self._ttl_ms)
            if not taken and self._client.get(self._key) != self._token:
                ask_held(self._client, self._domain, self._ttl_seconds)
                raise LockHeld(self._domain, holder(self._client, self._domain) or "unknown")
        self._thread = threading.Thread(
            target=self._beat, args=(asked,), name=f"round-lock-{self._domain}", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._release(keys=[self._key], args=[self._token])
        except redis.RedisError as failure:
            logger.warning(
                "the round lock of domain %s was not released (%s); it ends by itself", self._domain, failure
            )

    @property
    def _ttl_ms(self) -> int:
        return max(1, round(self._ttl_seconds * 1000))

    def _beat(self, extended: float) -> None:
        while not self._stop.wait(self._ttl_seconds / _BEATS_PER_TTL):
            asked = time.monotonic()
            try:
                if not self._extend(keys=[self._key], args=[self._token, self._ttl_ms]):
                    self._lose("another round took it, or it was deleted")
                    return
                extended = asked
            except redis.RedisError as error:
                logger.warning("the round lock of domain %s was not extended: %s", self._domain, error)
            silent = time.monotonic() - extended
            if silent >= _LOST_AFTER * self._ttl_seconds:
                self._lose(f"Redis has not answered for {silent:.1f} s")
                return

    def _lose(self, reason: str) -> None:
        logger.error("round %s lost the lock of domain %s: %s", self._round_id, self._domain, reason)
        self.lost.set()


def ask_held(client: redis.Redis, domain: str, ttl_seconds: float) -> Any:
    """Whether a round holds the domain, as `key_held` tells it."""
    return key_held(client, keys.round_lock(domain), ttl_seconds)


def key_held(client: redis.Redis, key: str, ttl_seconds: float) -> Any:
    """1 if somebody holds a lock, else 0; of a pipeline, its place in it. Raises redis.RedisError.

    A lock that would last far longer than `ttl_seconds` gets that time: a living holder extends it as ever.
    """
    return client.eval(_HELD, 1, key, str(max(1, round(ttl_seconds * 1000))))


def holder(client: redis.Redis, domain: str) -> str | None:
    """Id of the round that holds the domain's lock; None where it is free. Raises StreamUnavailable."""
    with translated(f"read the round lock of domain {domain}"):
        token = cast("bytes | None", client.get(keys.round_lock(domain)))
    return None if token is None else token.decode(errors="replace").rpartition(" ")[0]
