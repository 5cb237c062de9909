"""A serving worker of our own: the real process, on a free port, with data of its own."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redraft_ops.bench.load import Endpoint
from redraft_ops.connections import get_json
from redraft_ops.errors import BenchFailed
from redraft_ops.processes import Children
from redraft_ops.settings import Settings, as_environment

READY_SECONDS = 600.0


@contextmanager
def serving_worker(settings: Settings, folder: Path, threads: int | None) -> Iterator[Endpoint]:
    """`redraft serve` with these settings for the time of a `with` block; yields once it is ready.

    Raises ChildEnded, and BenchFailed where it is not ready within READY_SECONDS.
    """
    secret = settings.serving.api_key
    url = f"http://{settings.serving.host}:{settings.serving.port}"
    with Children(folder, as_environment(settings)) as children:
        children.start("serve", ["serve"], threads)
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            children.check()
            endpoint = find_endpoint(url, key=secret.get_secret_value() if secret else None)
            if endpoint is not None:
                yield endpoint
                return
            time.sleep(0.2)
        raise BenchFailed(f"the serving worker was not ready within {READY_SECONDS:.0f} s; read its log")


def find_endpoint(
    url: str, *, ours: bool = True, chat: bool = False, key: str | None = None
) -> Endpoint | None:
    """A server that answers, with the first model it names; None while it does not."""
    try:
        if ours:
            get(url, "/ready", key)
        model = str(get(url, "/v1/models", key)["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError):
        return None
    return Endpoint(url, model, ours, chat, key)


def get(url: str, path: str, key: str | None = None) -> Any:
    """JSON of a GET, None for an empty body. Raises OSError, HTTPException where there is no 200."""
    return get_json(url, path, 10.0, {"Authorization": f"Bearer {key}"} if key else None)
