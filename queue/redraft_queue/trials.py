"""Evidence of trials: what each serving worker has measured on each arm, and who may decide from it.

A worker writes its sums as absolute values under a field of its own, so that writing twice adds nothing, and
what a dead worker has measured stays. The evidence is the total over all fields.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import redis

from redraft_queue import keys
from redraft_queue.connection import translated
from redraft_queue.lock import key_held
from redraft_queue.schedule import record_lost_trial

logger = logging.getLogger(__name__)

_LIFE_SECONDS = 30 * 86_400
"""After the last report; a trial that nobody reports to any more is forgotten."""
_DECISION_SECONDS = 60.0
"""Longest time that one worker may take to carry out a decision before another may try."""
_OVER_SECONDS = 600
"""Reports on a trial that is decided are refused for this long, in which every worker has noticed."""
_OVER = b"over"
# A worker that has not noticed yet would bring a dropped trial back, to be decided on again where the same
# two versions meet again.
_REPORT = """
if redis.call('HEXISTS', KEYS[1], 'over') == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return redis.call('EXPIRE', KEYS[1], ARGV[1])
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

Numbers = Mapping[str, float]


class TrialStore:
    """The trials of all domains in Redis. Safe to share between threads.

    Every method raises StreamUnavailable where Redis isn't reached within its timeout, is full or refuses.
    """

    def __init__(self, client: redis.Redis, decision_seconds: float = _DECISION_SECONDS) -> None:
        self._client = client
        self._decision_seconds = decision_seconds
        self._report = client.register_script(_REPORT)
        self._release = client.register_script(_RELEASE)

    def report(self, domain: str, trial_id: str, worker_id: str, arms: Mapping[str, Numbers]) -> None:
        """Put a worker's sums so far, by arm, in place of what it reported before; nothing is written where
        the trial was dropped a short while ago.
        """
        pairs = [
            part for arm, sums in arms.items() for part in (f"{worker_id} {arm}", json.dumps(dict(sums)))
        ]
        if pairs:
            with translated(f"report on the trial {trial_id}"):
                self._report(keys=[keys.trial(domain, trial_id)], args=[_LIFE_SECONDS, *pairs])

    def totals(self, domain: str, trial_id: str) -> dict[str, dict[str, float]]:
        """The sums over all workers, by arm; empty where nothing was reported."""
        with translated(f"read the trial {trial_id}"):
            found = cast("dict[bytes, bytes]", self._client.hgetall(keys.trial(domain, trial_id)))
        totals: dict[str, Counter[str]] = {}
        for field, value in found.items():
            if field == _OVER:
                continue
            arm = field.decode(errors="replace").rpartition(" ")[2]
            totals.setdefault(arm, Counter()).update(_numbers(domain, trial_id, value))
        return {arm: dict(sums) for arm, sums in totals.items()}

    def drop(self, domain: str, trial_id: str) -> None:
        """Forget a trial that is decided, with the reports that other workers are about to make."""
        key = keys.trial(domain, trial_id)
        with translated(f"drop the trial {trial_id}"):
            pipeline = self._client.pipeline(transaction=True)
            pipeline.delete(key)
            pipeline.hset(key, _OVER, "1")
            pipeline.expire(key, _OVER_SECONDS)
            pipeline.execute()

    def lost(self, domain: str, version: int) -> None:
        """A candidate did not stand its trial: its round brought no gain after all."""
        record_lost_trial(self._client, domain, version)

    def window(self, domain: str, watch: str) -> int:
        """The number of a watch's present window, counted from 0."""
        with translated(f"read the window of {watch}"):
            found = cast("bytes | None", self._client.hget(keys.trial_window(domain), watch))
        return int(found) if found is not None and found.isdigit() else 0

    def open_window(self, domain: str, watch: str, number: int) -> None:
        """Begin a new window of a watch. Windows of the domain's earlier watches are forgotten."""
        key = keys.trial_window(domain)
        with translated(f"open a window of {watch}"):
            pipeline = self._client.pipeline(transaction=True)
            pipeline.delete(key)
            pipeline.hset(key, watch, str(number))
            pipeline.expire(key, _LIFE_SECONDS)
            pipeline.execute()

    @contextmanager
    def deciding(self, domain: str) -> Iterator[bool]:
        """Whether this caller may decide on the domain's trial while the context lasts.

        False where another one holds the lock; a holder that died gives it up after a minute. The token makes
        the release by a late holder harmless (redis.io, "Distributed locks").
        """
        key, token = keys.trial_lock(domain), uuid.uuid4().hex.encode()
        with translated(f"take the lock of the trial of domain {domain}"):
            taken = self._client.set(key, token, nx=True, px=max(1, round(self._decision_seconds * 1000)))
            if not taken:
                key_held(self._client, key, self._decision_seconds)
        try:
            yield bool(taken)
        finally:
            if taken:
                self._let_go(key, token)

    def _let_go(self, key: str, token: bytes) -> None:
        try:
            self._release(keys=[key], args=[token])
        except redis.RedisError as error:
            logger.warning("the lock %s was not released (%s); it ends by itself", key, error)


def _numbers(domain: str, trial_id: str, value: bytes) -> dict[str, float]:
    """One worker's sums of one arm; nothing where they can't be read."""
    try:
        return {str(name): float(number) for name, number in json.loads(value).items()}
    except (ValueError, TypeError, AttributeError):
        logger.warning("the trial %s of domain %s holds a report that can't be read", trial_id, domain)
        return {}
