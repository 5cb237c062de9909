"""The news that a champion has moved: a hint that saves a poll. Whoever misses it finds out by polling."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from redraft_queue import keys
from redraft_queue.connection import translated
from redraft_queue.schedule import reset_wait

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.5
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ChampionMoved:
    """The domain's champion is now `version`; None = the base draft."""

    domain: str
    version: int | None


def publish_champion(client: redis.Redis, event: ChampionMoved) -> int:
    """Tell every subscriber; returns how many heard it. Raises StreamUnavailable.

    The rounds that found nothing to gain were measured against another champion: their wait is over.
    """
    message = json.dumps({"domain": keys.check_name(event.domain), "version": event.version})
    with translated("publish that a champion moved"):
        heard = int(client.publish(keys.EVENTS, message))
    reset_wait(client, event.domain)
    return heard


def champion_events(client: redis.Redis, stop: threading.Event) -> Iterator[ChampionMoved]:
    """Yield events until `stop` is set (seen within the socket timeout); for a thread of its own.

    Reconnects with growing pauses where Redis is away; what was published meanwhile is missed. Messages that
    are no event are logged and skipped.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            with client.pubsub(ignore_subscribe_messages=True) as subscription:  # type: ignore[no-untyped-call]
                subscription.subscribe(keys.EVENTS)
                while not stop.is_set():
                    message = subscription.get_message(timeout=_WAIT_SECONDS)
                    pause = _FIRST_PAUSE_SECONDS
                    event = None if message is None else _event(message["data"])
                    if event is not None:
                        yield event
        except redis.RedisError as error:
            logger.warning("champion events are away for at least %g s: %s", pause, error)
            stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _event(data: Any) -> ChampionMoved | None:
    try:
        document = json.loads(data)
        version = document["version"]
        return ChampionMoved(keys.check_name(document["domain"]), None if version is None else int(version))
    except (ValueError, TypeError, KeyError) as error:
        logger.warning("a message on %s is no event: %r", keys.EVENTS, error)
        return None
