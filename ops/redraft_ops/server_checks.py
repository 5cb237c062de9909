"""The checks of `redraft doctor` that ask Redis and MLflow: their habits, not only whether they answer."""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit

from redraft_ops.connections import connect as connect_http
from redraft_ops.settings import Settings, without_password
from redraft_ops.stack import open_stack, tracking

MOST_CLOCK_SECONDS = 5.0
"""Stamps of two machines are compared in minutes at the least; beyond this the clocks are simply wrong."""
SECONDS = 5.0
_FORBIDDEN = 403


def redis_habits(settings: Settings) -> str:
    """A file that is appended to, nothing evicted. Raises RuntimeError."""
    from redraft_queue.connection import translated
    from redraft_queue.stream import connect

    with open_stack(settings) as stack, translated("tell its settings"):
        client = connect(stack.redis_url, settings.queue)
        persistence, memory = client.info("persistence"), client.info("memory")
    wrong = []
    if not persistence.get("aof_enabled"):
        wrong.append("it appends to no file, so samples and rounds end with it (set appendonly yes)")
    elif persistence.get("aof_last_write_status", "ok") != "ok":
        wrong.append("its last write to disk failed (see its log; is the disk full?)")
    if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
        wrong.append(
            f"it evicts by {memory['maxmemory_policy']}, so samples vanish unseen (set maxmemory-policy "
            "noeviction)"
        )
    if wrong:
        raise RuntimeError("; ".join(wrong))
    limit = memory.get("maxmemory")
    return f"appends to a file, evicts nothing, {memory['used_memory_human']} of {_size(limit)}"


def clock(settings: Settings) -> str:
    """This machine's clock against that of Redis. Raises RuntimeError."""
    from redraft_queue.connection import translated
    from redraft_queue.stream import connect

    with open_stack(settings) as stack, translated("tell the time"):
        client = connect(stack.redis_url, settings.queue)
        client.ping()
        before = time.time()
        seconds, microseconds = client.time()
        after = time.time()
    apart = seconds + microseconds / 1e6 - (before + after) / 2
    if abs(apart) > MOST_CLOCK_SECONDS:
        side = "ahead of" if apart > 0 else "behind"
        raise RuntimeError(f"the clock of Redis is {abs(apart):.0f} s {side} this machine's; set both by NTP")
    return f"Redis and this machine agree within {max(abs(apart), 0.001):.3f} s"


def mlflow_hosts(settings: Settings) -> str:
    """A call of the registry's API under the name that the settings use. Raises RuntimeError."""
    uri, _ = tracking(settings)
    if not uri.startswith("http"):
        return "no server, a file"
    shown = without_password(uri)
    connection = connect_http(uri, SECONDS)
    path = f"{urlsplit(uri).path.rstrip('/')}/api/2.0/mlflow/experiments/search"
    try:
        connection.request("POST", path, json.dumps({"max_results": 1}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, body = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError(f"MLflow at {shown} does not answer ({error}); start it") from error
    finally:
        connection.close()
    if status == _FORBIDDEN and b"host" in body.lower():
        raise RuntimeError(
            f"MLflow refuses the name {urlsplit(uri).hostname}; start it with --allowed-hosts "
            f"{urlsplit(uri).hostname}:*,localhost:*"
        )
    if status >= 500:
        raise RuntimeError(f"MLflow at {shown} answers {status}; see its log")
    return f"{shown} answers its API under this name"


def _size(limit: int | None) -> str:
    return f"{limit / 2**30:.1f} GiB" if limit else "no limit"
