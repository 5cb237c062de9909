"""Asks Redis and MLflow every few seconds what the loop does, so that no request for it has to wait."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import redis
from redraft_models.registry import Registry
from redraft_queue.heartbeat import heartbeats
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream

from redraft_serving.overview.facts import Facts, from_redis, from_registry
from redraft_serving.overview.source import Source
from redraft_serving.overview.workers import Workers

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
_MOST_AT_ONCE = 8
"""Domains that one pass asks MLflow about, at some 15 ms of computing each; more of them take turns."""


class Loop:
    """Facts of all domains and signs of life of all workers, renewed by a thread of its own.

    Every call to a server is bounded in time; one that is away ends its part of the pass, and what it said
    last stays, with its age.
    """

    def __init__(
        self,
        registry: Registry | None,
        stream: SampleStream | None,
        client: redis.Redis | None,
        domains: Callable[[], Sequence[str]],
        period_seconds: float = PERIOD_SECONDS,
        settings: QueueSettings | None = None,
        shared: Mapping[str, str] | None = None,
    ) -> None:
        self._registry = registry
        self._stream = stream
        self._client = client
        self._domains = domains
        self._period_seconds = period_seconds
        self._shared = dict(shared or {})
        self._settings = settings or QueueSettings.model_validate({})
        self.registry_source = Source("MLflow", registry is not None)
        self.redis_source = Source("Redis", client is not None)
        self._workers = Workers(self._settings.heartbeat_ttl_seconds)
        self._facts: dict[str, Facts] = {}
        self._rollbacks: Counter[str] = Counter()
        self._turn = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redraft-overview", daemon=True)

    def start(self) -> None:
        """Start the thread, where there is anything to ask."""
        if self._registry is not None or self._client is not None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread; a pass that waits for a server is left behind."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def facts(self, domain: str) -> Facts:
        """What is known of a domain."""
        return self._facts.get(domain, Facts())

    def draft_of(self, domain: str) -> str:
        """The domain whose drafts serve it: its own, unless the settings share another's."""
        return self._shared.get(domain, domain)

    @property
    def rollbacks(self) -> Mapping[str, int]:
        """Champions that were seen to go back, by domain, since this worker started."""
        return dict(self._rollbacks)

    @property
    def workers(self) -> Workers:
        """All processes with their last signs of life."""
        return self._workers

    def look(self) -> None:
        """One pass."""
        names = list(self._domains())
        self._ask_registry(names)
        self._ask_redis(names)

    def _ask_registry(self, names: Sequence[str]) -> None:
        if self._registry is None or not names:
            return
        turn = [names[(self._turn + i) % len(names)] for i in range(min(_MOST_AT_ONCE, len(names)))]
        with self.registry_source.asked():
            for domain in turn:
                before = self.facts(domain)
                now = from_registry(before, self._registry, domain, self.draft_of(domain))
                self._facts[domain] = now
                self._rollbacks[domain] += _went_back(before, now)
                self._turn += 1

    def _ask_redis(self, names: Sequence[str]) -> None:
        if self._client is None:
            return
        with self.redis_source.asked():
            for domain in names if self._stream is not None else ():
                assert self._stream is not None
                facts = self.facts(domain)
                self._facts[domain] = from_redis(facts, self._stream, self._client, domain, self._settings)
            champions = {d: f.champion for d, f in self._facts.items() if f.champion is not None}
            self._workers.look(heartbeats(self._client), champions)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception:
                logger.exception("a look at the loop failed")
            self._stop.wait(self._period_seconds)


def _went_back(before: Facts, now: Facts) -> bool:
    """Whether the champion of before was left with a reason."""
    if before.champion in (None, now.champion):
        return False
    left = (row for row in now.rounds if row["version"] == before.champion)
    return any(row["rolled_back_ms"] is not None for row in left)
