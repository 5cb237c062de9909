"""What a serving worker says of its load, from a real engine through a real Valkey."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redraft_models.loading import load_pair
from redraft_models.settings import ModelSettings
from redraft_queue.load import Load, serving_load
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from redraft_serving.engine.interface import Emission, GenerationRequest
from redraft_serving.engine.local import LocalEngine
from redraft_serving.load import load_heartbeat
from redraft_serving.settings import ServingSettings

WITHIN_SECONDS = 30.0


@pytest.fixture
def engine(toy_pair: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> Iterator[LocalEngine]:
    target, draft = toy_pair("table")
    settings = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=256)
    made = LocalEngine(load_pair(settings, tmp_path), ServingSettings(max_num_seqs=1), lambda _: None)
    made.start()
    yield made
    made.stop()


def test_requests_that_run_and_wait_are_told_and_then_the_time_they_took(
    engine: LocalEngine, redis_url: str
) -> None:
    """The first of two requests is held in the middle, in the one slot that there is."""
    client = connect(redis_url, QueueSettings())
    held, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def first(emission: Emission) -> None:
        held.set()
        go_on.wait(WITHIN_SECONDS)

    def second(emission: Emission) -> None:
        if emission.finish_reason:
            ended.set()

    with load_heartbeat(client, engine):
        before = until(lambda: serving_load(client), lambda load: load.workers == 1)
        assert (before.running, before.waiting) == (0, 0)
        request = {"domain": "default", "prompt_ids": (3, 4), "max_tokens": 8, "ignore_eos": True}
        engine.submit(GenerationRequest("a", **request), first)  # type: ignore[arg-type]
        engine.submit(GenerationRequest("b", **request), second)  # type: ignore[arg-type]
        assert held.wait(WITHIN_SECONDS)
        busy = until(lambda: serving_load(client), lambda load: load.running > 0)
        assert (busy.running, busy.waiting) == (1, 1)
        go_on.set()
        assert ended.wait(WITHIN_SECONDS)
        after = until(lambda: serving_load(client), lambda load: load.running == 0)
        assert after.busy_seconds > before.busy_seconds
    assert serving_load(client) == Load()


def until(look: Callable[[], Load], done: Callable[[Load], bool]) -> Load:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not done(found := look()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.05)
    return found
