"""What a round reads of a long stream is its range and a bounded replay, however much lies before them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redraft_queue import keys
from redraft_queue.newest import newest_samples
from redraft_queue.reading import FIELD
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream
from redraft_trainer import plan
from redraft_trainer.plan import Collected, collect, make_plan
from redraft_trainer.settings import TrainerSettings

from .conftest import table_samples

SETTINGS = TrainerSettings(replay_fraction=0.25)
OLD, NEW = 100_000, 400
ROWS = np.full((16, 16), 1 / 16)
PAGE = 64


class Counting(redis.Redis):
    """Counts the entries that the server hands out."""

    entries = 0

    def xrange(self, *args: Any, **kwargs: Any) -> Any:
        found = super().xrange(*args, **kwargs)
        self.entries += len(found)  # type: ignore[arg-type]
        return found


@pytest.fixture
def client(redis_url: str) -> Counting:
    return Counting.from_url(redis_url)


def fill(client: redis.Redis, count: int, seed: int, first_ms: int) -> str:
    """Samples with ids one millisecond apart; returns the last id. The few that are made are repeated under
    other names, as packing is what takes time.
    """
    made = table_samples(ROWS, min(count, 500), 4, first_words=range(3, 16), seed=seed)
    pipeline = client.pipeline(transaction=False)
    for index in range(count):
        name = f"s{seed}-{index}"
        packed = replace(made[index % len(made)], request_id=name).pack()
        pipeline.xadd(keys.samples("default"), {FIELD: packed}, id=f"{first_ms + index}-0")  # type: ignore[dict-item]
        if index % 5_000 == 4_999:
            pipeline.execute()
    pipeline.incrby(keys.tokens("default"), 4 * count)
    pipeline.execute()
    return f"{first_ms + count - 1}-0"


def read_of(client: Counting, old: int, folder: Path, settings: TrainerSettings) -> tuple[int, Collected]:
    """Entries read by a round of NEW new samples behind `old` earlier ones."""
    last = fill(client, old, 0, 1_000_000)
    stream = SampleStream(client, QueueSettings())
    cursor = {"stream_last_id": last, "stream_last_ordinal": str(old), "stream_last_tokens": str(4 * old)}
    fill(client, NEW, 1, 2_000_000)
    client.entries = 0
    folder.mkdir()
    made = make_plan(stream, "default", cursor)
    assert made.new_entries == NEW
    found = collect(stream, made, folder, settings, "target", "tokenizer")
    return client.entries, found


def test_a_range_behind_100_000_samples_costs_what_it_costs_behind_2_000(
    client: Counting, tmp_path: Path
) -> None:
    few, _ = read_of(client, 2_000, tmp_path / "a", SETTINGS)
    client.flushdb()
    many, found = read_of(client, OLD, tmp_path / "b", SETTINGS)
    assert found.tally.entries == NEW
    assert found.tokens["train"] > found.tokens["new"]
    assert many == pytest.approx(few, rel=0.25)
    # The range once, and of each replayed chunk one page.
    assert many <= NEW + PAGE * (2 + found.tokens["train"] / 4 / plan.CHUNK)


def test_replay_is_bounded_where_nothing_of_the_past_can_be_used(
    client: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read on until the wanted tokens are there would read it all."""
    last = fill(client, 30_000, 0, 1_000_000)
    fill(client, NEW, 1, 2_000_000)
    stream = SampleStream(client, QueueSettings())
    cursor = {"stream_last_id": last, "stream_last_ordinal": "30000", "stream_last_tokens": "120000"}
    made = make_plan(stream, "default", cursor)
    monkeypatch.setattr(plan, "MOST_CHUNKS", 8)
    client.entries = 0
    collect(stream, made, tmp_path, SETTINGS, "target", "another tokenizer")
    assert client.entries == NEW
    monkeypatch.setattr(
        plan, "split", lambda sample, *_: "train" if sample.request_id[1] == "1" else "heldout"
    )
    client.entries = 0
    collect(stream, made, tmp_path, SETTINGS, "target", "tokenizer")
    assert NEW < client.entries <= NEW + 8 * PAGE


def test_newest_samples_come_backwards_and_no_more_than_asked_for(client: Counting) -> None:
    last = fill(client, 500, 0, 1_000_000)
    limits = {"expected_target": "target", "expected_tokenizer": "tokenizer"}
    found = newest_samples(client, "default", last, **limits, most_entries=150)
    assert [one.request_id for one in found] == [f"s0-{index}" for index in range(499, 349, -1)]
    some = newest_samples(client, "default", "1000099-0", **limits, most_entries=1_000)
    assert [one.request_id for one in some] == [f"s0-{index}" for index in range(99, -1, -1)]
    assert list(newest_samples(client, "default", None, **limits, most_entries=10)) == []
    other = newest_samples(
        client, "default", last, expected_target="x", expected_tokenizer="y", most_entries=100
    )
    assert list(other) == []
    assert client.exists(keys.dead("default")) == 0
