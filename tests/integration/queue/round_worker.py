"""A Celery process for the tests: `python round_worker.py worker|beat URL SETTINGS_JSON TRANSPORT_JSON`.

The round's body sleeps `test:round:seconds`, notes its start and end in the list `test:rounds`, and holds the
round lock unless `test:no-lock` is set.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import redis
from redraft_queue.celery_app import (
    Progress,
    RoundClock,
    build_app,
    register_train_round,
    run_beat,
    run_worker,
)
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.lock import RoundLock
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect


def body(client: redis.Redis, domain: str, round_id: str, progress: Progress) -> Mapping[str, Any]:
    """One round that does nothing for a while."""
    if domain == "broken":
        raise RuntimeError("this round fails")
    lock = (
        nullcontext()
        if client.exists("test:no-lock")
        else RoundLock(client, domain, round_id, ttl_seconds=5.0)
    )
    with lock:
        client.rpush("test:rounds", f"start {round_id} {os.getpid()}")
        end = time.monotonic() + float(client.get("test:round:seconds") or 0)
        step = 0
        while time.monotonic() < end:
            progress({"step": step})
            step += 1
            time.sleep(0.1)
        client.rpush("test:rounds", f"end {round_id} {os.getpid()}")
    return {"decision": "promoted", "version": 1, "domain": domain}


def main(kind: str, url: str, settings_json: str, transport_json: str) -> int:
    """Run the process until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = QueueSettings.model_validate_json(settings_json)
    client = connect(url, settings)
    app = build_app(url, settings)
    app.conf.broker_transport_options.update(json.loads(transport_json))
    if kind == "beat":
        clock = RoundClock(app, client, settings, ["default"])
        run_beat(app, clock, Heartbeat(client, "beat", settings.heartbeat_ttl_seconds))
        return 0
    register_train_round(
        app, lambda domain, round_id, _force, progress: body(client, domain, round_id, progress), client
    )
    return run_worker(app, Heartbeat(client, "worker", settings.heartbeat_ttl_seconds))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
