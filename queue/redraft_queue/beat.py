"""The clock that asks for training rounds: at each tick every domain is looked at, and what is due is asked
for once, however many beats run.

Nothing is kept in a file: the schedule's hash in Redis says when a round was last asked for. Where Redis is
away, a tick does nothing and the next one tries again; where it came back empty, the waits begin anew.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Iterator
from typing import Any

import redis
from celery import Celery
from celery.beat import Scheduler

from redraft_queue import keys
from redraft_queue.acceptances import merged, on_trial
from redraft_queue.clock import clock_of
from redraft_queue.due import Acceptance, ScheduleState, Sight, Verdict, decide
from redraft_queue.errors import BadName, QueueError
from redraft_queue.heartbeat import heartbeats
from redraft_queue.lock import ask_held
from redraft_queue.rounds import request_round
from redraft_queue.schedule import record_asked, record_sent, reset_wait, restamp, server_ms, state_of
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream

logger = logging.getLogger(__name__)

_SHORTEST_TICK_SECONDS = 0.05
_TRIM_EVERY_SECONDS = 60.0
_MOST_EXPIRY_SECONDS = 30 * 24 * 3600.0


class RoundClock:
    """Looks at all domains and asks for the rounds that are due. `domains` are scheduled also before they had
    a sample; those with samples join by themselves; `unscheduled` ones are trained with another domain.
    """

    def __init__(
        self,
        app: Celery,
        client: redis.Redis,
        settings: QueueSettings,
        domains: Collection[str],
        unscheduled: Collection[str] = (),
    ) -> None:
        self._app = app
        self._client = client
        self._settings = settings
        self._domains = frozenset(domains)
        self._unscheduled = frozenset(unscheduled)
        self._stream = SampleStream(client, settings)
        self._trimmed = float("-inf")
        self._reachable = True

    def tick(self) -> float:
        """One look at everything; returns the seconds until the next. Never raises."""
        try:
            soonest = self._look()
            if not self._reachable:
                logger.info("beat reaches Redis again")
            self._reachable = True
            return max(_SHORTEST_TICK_SECONDS, min(self._settings.tick_seconds, soonest))
        except (redis.RedisError, QueueError) as error:
            if self._reachable:
                logger.warning("beat asks for no rounds until Redis answers: %s", error)
            self._reachable = False
        except Exception:
            # Beat has to live on: the next tick may well succeed.
            logger.exception("beat could not look at its domains")
        return self._settings.tick_seconds

    def _look(self) -> float:
        """Seconds until a domain's clock strikes."""
        names = sorted((self._domains | set(self._stream.domains())) - self._unscheduled)
        names = [name for name in names if _is_name(name)]
        live, trials = self._signs()
        now_ms = server_ms(self._client)
        soonest = float("inf")
        self._trim(names)  # first: it is what makes room where Redis is full
        for domain, state, tokens, running in self._states(names):
            sight = Sight(now_ms, tokens, running, domain in trials, live.get(domain))
            due_ms = self._act(domain, state, sight)
            # A round that runs is waited for at the usual pace, not until its clock strikes.
            soonest = soonest if running else min(soonest, (due_ms - now_ms) / 1000)
        return soonest

    def _signs(self) -> tuple[dict[str, Acceptance], set[str]]:
        early = self._settings.drop_trigger is not None or self._settings.new_tokens_trigger is not None
        signs = heartbeats(self._client) if early else []
        return merged(signs), on_trial(signs)

    def _states(self, names: list[str]) -> Iterator[tuple[str, ScheduleState, int, bool]]:
        pipeline = self._client.pipeline(transaction=False)
        for domain in names:
            pipeline.hgetall(keys.schedule(domain))
            pipeline.get(keys.tokens(domain))
            ask_held(pipeline, domain, self._settings.lock_ttl_seconds)
        found: list[Any] = pipeline.execute(raise_on_error=False)
        for at, domain in enumerate(names):
            fields, tokens, lock = answers = found[3 * at : 3 * at + 3]
            wrong = [answer for answer in answers if isinstance(answer, Exception)]
            if wrong:
                logger.warning("the schedule of domain %s can't be read: %s", domain, wrong[0])
            else:
                yield domain, state_of(fields), int(tokens or 0), bool(lock)

    def _act(self, domain: str, state: ScheduleState, sight: Sight) -> int:
        """Do what the verdict says; returns when the domain's clock strikes next."""
        clock = clock_of(self._settings.schedules.get(domain, self._settings.schedule_seconds))
        verdict = decide(state, sight, clock, self._settings)
        if verdict.restamp:
            restamp(self._client, domain, state, sight.now_ms)
        if verdict.fallen and state.rounds_without_gain:
            logger.info("live acceptance of domain %s has fallen: its wait is short again", domain)
            reset_wait(self._client, domain)
        if verdict.trigger is None:
            return verdict.due_ms
        next_ms = clock.next_after(sight.now_ms)
        self._ask(domain, state, sight, verdict, (next_ms - sight.now_ms) / 1000)
        return next_ms

    def _ask(
        self, domain: str, state: ScheduleState, sight: Sight, verdict: Verdict, expires_seconds: float
    ) -> None:
        assert verdict.trigger is not None
        # A claim that nobody confirmed keeps its round: if its message did arrive, the second finds it done.
        round_id = str(uuid.uuid4()) if state.sent or not state.round_id else state.round_id
        client, trigger = self._client, verdict.trigger
        if not record_asked(client, domain, state, sight.now_ms, trigger, round_id, sight.tokens):
            return
        request_round(
            self._app,
            domain,
            round_id=round_id,
            trigger=trigger,
            expires_seconds=min(expires_seconds, _MOST_EXPIRY_SECONDS),
        )
        record_sent(client, domain)
        logger.info("round %s of domain %s is asked for: %s", round_id, domain, trigger)

    def _trim(self, names: list[str]) -> None:
        """Retention by age must not depend on new samples: an idle domain has none."""
        if time.monotonic() - self._trimmed < _TRIM_EVERY_SECONDS:
            return
        for domain in names:
            self._stream.trim_by_age(domain)
        self._trimmed = time.monotonic()


class RoundScheduler(Scheduler):  # type: ignore[misc]
    """Celery's beat loop around a RoundClock; has no entries of its own."""

    def __init__(self, *arguments: Any, clock: RoundClock, **options: Any) -> None:
        self._clock = clock
        super().__init__(*arguments, **options)

    def setup_schedule(self) -> None:
        """Nothing to set up."""

    def tick(self, *_: Any, **__: Any) -> float:
        """One look at all domains."""
        return self._clock.tick()


def _is_name(name: str) -> bool:
    try:
        keys.check_name(name)
    except BadName:
        return False
    return True
