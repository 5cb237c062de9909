"""All that the dashboard shows beside the drafts themselves, as one document of plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from redraft_models.registry import Registry
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream

from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import Engine
from redraft_serving.live import LiveAcceptance
from redraft_serving.overview.curves import curves
from redraft_serving.overview.facts import stream_card
from redraft_serving.overview.history import History
from redraft_serving.overview.loop import Loop
from redraft_serving.overview.times import DecodeTime, DecodeTimes
from redraft_serving.overview.trials import trial_card


class Overview:
    """This worker's history and the loop's facts. `start` begins to gather both; `document` never waits.

    Args:
        engine: whose statistics are looked at.
        registry, stream, client: what the loop's facts come from; None where there is none.
        domains: the domains of this worker, asked at every look.
        trials: canary and watch of each domain, if any.
        live: moving averages of live acceptance, if any.
        shared_drafts: domain -> the domain whose drafts serve it.
        settings: the schedules, and after how long a silent worker's sign of life is gone.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry | None = None,
        stream: SampleStream | None = None,
        client: redis.Redis | None = None,
        domains: Callable[[], Sequence[str]] = lambda: (),
        trials: Trials | None = None,
        live: LiveAcceptance | None = None,
        settings: QueueSettings | None = None,
        shared_drafts: Mapping[str, str] | None = None,
    ) -> None:
        self.times = DecodeTimes()
        """Filled by whoever sees choices finish."""
        self.history = History(engine, self.times)
        self.loop = Loop(registry, stream, client, domains, settings=settings, shared=shared_drafts)
        self.trials = trials
        self.live = live
        self._started_ms = _now_ms()

    def start(self) -> None:
        """Begin to look, on two threads."""
        self.history.start()
        self.loop.start()

    def stop(self) -> None:
        """End both threads."""
        self.history.stop()
        self.loop.stop()

    def document(self, domains: Sequence[str], detailed: str | None = None) -> dict[str, Any]:
        """A JSON-able document: a row for each of `domains`, and everything about the `detailed` one of them.

        What is unknown is None. Times are milliseconds since 1970, durations seconds, rates between 0 and 1.
        """
        now_ms = _now_ms()
        times = self.times.all()
        return {
            "now_ms": now_ms,
            "started_ms": self._started_ms,
            "sources": {"redis": self.loop.redis_source.card(), "registry": self.loop.registry_source.card()},
            "domains": [self._summary(domain, times) for domain in domains],
            "detail": self._detail(detailed, now_ms) if detailed in domains else None,
            "workers": [_visible(row, domains) for row in self.loop.workers.rows()],
        }

    def _summary(self, domain: str, times: Mapping[str, DecodeTime]) -> dict[str, Any]:
        facts = self.loop.facts(domain)
        decode = times.get(domain, DecodeTime())
        return {
            "domain": domain,
            "draft_of": self.loop.draft_of(domain),
            "champion": facts.champion,
            "previous": facts.previous,
            "challenger": facts.challenger,
            "stream": stream_card(facts.backlog),
            "decode_seconds": round(decode.seconds, 4),
            "decoded_tokens": decode.tokens,
            "rollbacks": self.loop.rollbacks.get(domain, 0),
        }

    def _detail(self, domain: str | None, now_ms: int) -> dict[str, Any] | None:
        if domain is None:
            return None
        facts = self.loop.facts(domain)
        looks, marks = self.history.looks(), self.history.marks(domain)
        return {
            "domain": domain,
            "history": curves(looks, marks, domain, time.monotonic(), now_ms),
            "rounds": list(facts.rounds),
            "moves": list(facts.moves),
            "schedule": facts.schedule,
            "trial": trial_card(self.trials, domain),
        }


def _visible(row: Mapping[str, Any], domains: Sequence[str]) -> dict[str, Any]:
    """A worker's row without the domains that the reader may not see."""
    seen = set(domains)
    drafts = {key: {d: v for d, v in row[key].items() if d in seen} for key in ("drafts", "challengers")}
    return {**row, **drafts, "behind": [domain for domain in row["behind"] if domain in seen]}


def _now_ms() -> int:
    return round(time.time() * 1000)
