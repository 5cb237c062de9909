"""Samples with a law of their own, and a stream on a real server."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redraft_queue.records import Sample, ids_to_bytes
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect

MakeSample = Callable[..., Sample]
MakeStream = Callable[..., SampleStream]


def build_sample(number: int = 0, emitted: int = 3, k: int = 2, **fields: Any) -> Sample:
    """A sample of `emitted` tokens whose law puts 0.5 and 0.25 on two tokens and leaves 0.25."""
    values: dict[str, Any] = {
        "request_id": f"request-{number}",
        "domain": "default",
        "created_ms": 1_700_000_000_000 + number,
        "target_fingerprint": "target",
        "tokenizer_fingerprint": "tokenizer",
        "prompt_ids": (1, 2, number),
        "output_ids": tuple(range(10, 10 + emitted)),
        "topk_ids": ids_to_bytes(range(emitted * k)),
        "topk_logprobs": struct.pack(f"<{emitted * k}e", *[-0.693, -1.386, *[-9.0] * (k - 2)] * emitted),
        "tail_mass": struct.pack(f"<{emitted}e", *[0.25] * emitted),
        "top_k_logged": k,
    }
    return Sample(**{**values, **fields})


@pytest.fixture
def make_sample() -> MakeSample:
    """`make_sample(number, emitted, k, **fields)`."""
    return build_sample


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A client with a timeout of a second, on an empty server."""
    with connect(redis_url, QueueSettings(socket_timeout_seconds=1.0)) as client:
        yield client


@pytest.fixture
def make_stream(client: redis.Redis) -> MakeStream:
    """`make_stream(**settings)`: a SampleStream on the empty server."""

    def make(**settings: Any) -> SampleStream:
        return SampleStream(client, QueueSettings(**settings))

    return make
