"""The worker as a process: it drains on SIGTERM, writes what it holds, and says why it can't start."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from redraft_models.settings import ModelSettings
from redraft_ops.valkey import free_port
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from redraft_serving.errors import CannotListen
from redraft_serving.loss import LossMeter
from redraft_serving.settings import ServingSettings
from redraft_serving.worker import WorkerConfig, run

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from pathlib import Path
from redraft_models.settings import ModelSettings
from redraft_queue.settings import QueueSettings
from redraft_serving.settings import ServingSettings
from redraft_serving.worker import WorkerConfig, run
target, draft, cache, redis_url, port = sys.argv[1:]
run(WorkerConfig(
    models=ModelSettings(target=target, draft=draft),
    serving=ServingSettings(port=int(port), served_model_name="toy"),
    queue=QueueSettings(), cache_dir=Path(cache), redis_url=redis_url,
))
"""


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/ready", timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the worker did not become ready")


def test_sigterm_lets_answers_end_and_samples_out(
    pairs: Callable[..., tuple[Path, Path]], redis_url: str, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [*map(str, pairs("random")), str(tmp_path), redis_url, str(port)]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])
    try:
        wait_until_ready(url)
        answers: list[httpx.Response] = []
        body = {"prompt": "w1", "max_tokens": 300, "ignore_eos": True}
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=30))
        )
        thread.start()
        while "redraft_requests_running 1" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        thread.join(timeout=30)
        assert answers[0].json()["usage"]["completion_tokens"] == 300
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
    stream = SampleStream(connect(redis_url, QueueSettings()), QueueSettings())
    (sample,) = [found for _, found in stream.read("default", None, None)]
    assert len(sample.output_ids) == 300


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    """Found before any model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        config = WorkerConfig(
            models=ModelSettings(target="/nowhere"),
            serving=ServingSettings(port=port),
            queue=QueueSettings(),
            cache_dir=tmp_path,
        )
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}.*choose another"):
            run(config)


def test_samples_trimmed_unseen_are_counted(tracking_uri: str, redis_url: str) -> None:
    """Of 30 samples behind a cursor at 10, a stream of 5 keeps 5: 15 are lost, once each; a flush takes 5."""
    import dataclasses

    from redraft_models.registry import Registry
    from redraft_queue.records import Sample, ids_to_bytes

    settings = QueueSettings(stream_maxlen=5)
    stream = SampleStream(connect(redis_url, settings), settings)
    sample = Sample("r", "default", 1, "t", "k", (3,), (4,), ids_to_bytes((4,)), b"\0\0", b"\0\0", 1)

    def append(first: int, last: int) -> None:
        for number in range(first, last):
            stream.append([dataclasses.replace(sample, request_id=f"r{number}")])

    registry = Registry(tracking_uri)
    append(0, 10)
    position = stream.position("default")
    run_id = registry.start_run("default", "round", {}, {"round_id": "one"})
    tags = {"stream_last_id": position.last_id, "stream_last_ordinal": position.entries_added}
    registry.register("default", run_id, tags)
    meter = LossMeter(registry, stream, lambda: ["default"])
    meter.look()
    assert meter.lost["default"] == 0
    append(10, 30)
    meter.look()
    meter.look()
    assert meter.lost["default"] == 15
    connect(redis_url, settings).flushall()
    append(30, 33)
    meter.look()
    meter.look()
    # The five that were left when it was flushed.
    assert meter.lost["default"] == 20
