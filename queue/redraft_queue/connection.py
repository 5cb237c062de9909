"""How redraft talks to Redis: bounded in time, and back on its feet after a restart or a failover."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from redraft_queue.errors import BadUrl, StreamUnavailable
from redraft_queue.settings import QueueSettings

_HEALTH_CHECK_SECONDS = 30
_RETRY_PAUSE_SECONDS = 0.05
_RETRIES = 1


def connect(redis_url: str, settings: QueueSettings) -> redis.Redis:
    """A client that connects when it is first used and may be shared by threads. Raises BadUrl.

    A lost connection is opened anew once, and so is one to a server that turned read-only: behind one address
    a failover leaves old connections at the old primary. A timeout is never repeated, so that no call,
    connection and handshake included, takes much longer than `socket_timeout_seconds`.
    """
    retry = Retry(
        ConstantBackoff(_RETRY_PAUSE_SECONDS),
        _RETRIES,
        supported_errors=(RedisConnectionError, ReadOnlyError),
    )
    try:
        return redis.Redis.from_url(
            redis_url,
            socket_timeout=settings.socket_timeout_seconds,
            socket_connect_timeout=settings.socket_timeout_seconds,
            socket_keepalive=True,
            health_check_interval=_HEALTH_CHECK_SECONDS,
            retry=retry,
        )
    except ValueError as error:
        raise BadUrl(f"the Redis URL can't be used: {error}") from error


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Raise StreamUnavailable for whatever Redis raises while it does `action`."""
    try:
        yield
    except redis.RedisError as error:
        # Within a pipeline the message repeats the command, and with it a piece of somebody's prompt.
        message = str(error).rpartition("of pipeline caused error: ")[2]
        raise StreamUnavailable(
            f"Redis could not {action} ({type(error).__name__}: {message}); is it running, with memory left?"
        ) from error
