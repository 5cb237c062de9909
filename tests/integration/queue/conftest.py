"""Workers and clocks as real processes on a real Valkey."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from redraft_queue.celery_app import build_app
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect

from .watching import SETTINGS, Spawn, logs

SCRIPT = Path(__file__).with_name("round_worker.py")


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with connect(redis_url, SETTINGS) as client:
        yield client


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = build_app(redis_url, SETTINGS)
    yield app
    app.close()


@pytest.fixture
def spawn(redis_url: str, tmp_path: Path) -> Iterator[Spawn]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(
        kind: str = "worker", settings: QueueSettings = SETTINGS, url: str = redis_url, **transport: object
    ) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            str(SCRIPT),
            kind,
            url,
            settings.model_dump_json(),
            json.dumps(transport),
        ]
        with (tmp_path / f"{kind}-{len(processes)}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
    sys.stdout.write(logs(tmp_path))  # shown by pytest where the test fails
