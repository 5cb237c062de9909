"""What a worker says of itself in Redis: that it lives, what it serves, how it is accepted, how busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import redis
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.settings import QueueSettings

from redraft_serving.engine.interface import Engine
from redraft_serving.live import LiveAcceptance
from redraft_serving.load import load_heartbeat
from redraft_serving.swap import SwapWatcher

ROLE = "serving"


def show_signs(
    client: redis.Redis,
    settings: QueueSettings,
    engine: Engine,
    live: LiveAcceptance,
    watcher: SwapWatcher | None,
    domains: Callable[[], Sequence[str]],
    url: str | None,
    cleanup: ExitStack,
) -> None:
    """Begin to beat; `cleanup` ends it. Redis may come and go, and requests never wait for it."""
    started_ms = time.time_ns() // 1_000_000

    def details() -> dict[str, Any]:
        live.look(engine.statistics().drafts)
        return {
            "drafts": dict(watcher.serving) if watcher else {},
            "challengers": dict(watcher.challengers) if watcher else {},
            "domains": list(domains()),
            "acceptance": live.view(),
            "url": url,
            "started_ms": started_ms,
        }

    cleanup.enter_context(Heartbeat(client, ROLE, settings.heartbeat_ttl_seconds, details))
    cleanup.enter_context(load_heartbeat(client, engine))
