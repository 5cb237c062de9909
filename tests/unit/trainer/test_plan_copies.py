"""No request is trained on twice or left out where the stream holds copies or the cursor is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from redraft_trainer import plan as plans
from redraft_trainer.plan import Plan, collect, make_plan, part_file
from redraft_trainer.sample_files import read_samples
from redraft_trainer.settings import TrainerSettings

from .conftest import table_samples

ROWS = np.full((16, 16), 1 / 16)
WITHOUT_REPLAY = TrainerSettings(replay_fraction=0.0)
FIRST = table_samples(ROWS, 50, 10, first_words=range(3, 16), seed=0)
SECOND = table_samples(ROWS, 50, 10, first_words=range(3, 16), seed=1)


@pytest.fixture
def stream(redis_url: str) -> Iterator[SampleStream]:
    with connect(redis_url, QueueSettings()) as client:
        yield SampleStream(client, QueueSettings())


@pytest.fixture
def half_consumed(stream: SampleStream) -> Plan:
    """A round's plan over the first 50 of 100 requests; the last 20 of those come once more with the others,
    as after an append whose answer was lost.
    """
    stream.append(FIRST)
    plan = make_plan(stream, "default", {})
    stream.append([*FIRST[30:], *SECOND])
    return plan


def names(stream: SampleStream, plan: Plan, folder: Path) -> list[str]:
    """Requests in the files of a round, sorted, as often as they are there."""
    collect(stream, plan, folder, WITHOUT_REPLAY, "target", "tokenizer")
    parts = ("train", "validation", "heldout")
    return sorted(one.request_id for part in parts for one in read_samples(part_file(folder, part)))  # type: ignore[arg-type]


def cursor(plan: Plan) -> dict[str, str]:
    """The tags that a version of this plan carries."""
    return {
        "stream_last_id": plan.last_id or "",
        "stream_last_ordinal": str(plan.last_ordinal),
        "stream_last_tokens": str(plan.last_tokens),
    }


def test_copies_behind_the_cursor_are_not_trained_on_again(
    stream: SampleStream, half_consumed: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds see 100 requests, each once; the wrong variant, which knows no past, 20 of them twice."""
    before = names(stream, half_consumed, tmp_path)
    second = make_plan(stream, "default", cursor(half_consumed))
    both = before + names(stream, second, tmp_path)
    assert sorted(both) == sorted(one.request_id for one in FIRST + SECOND)
    assert len(set(both)) == 100
    monkeypatch.setattr(plans, "KNOWN", 0)
    assert len(before + names(stream, second, tmp_path)) == 120


def test_a_lost_cursor_loses_no_request_and_trains_none_twice(
    stream: SampleStream, half_consumed: Plan, tmp_path: Path
) -> None:
    """All versions were deleted: the next round, which starts from the base draft, reads everything once."""
    assert half_consumed.new_entries == 50
    anew = make_plan(stream, "default", {})
    assert (anew.after_id, anew.new_entries, anew.lost) == (None, 120, 0)
    found = names(stream, anew, tmp_path)
    assert found == sorted(one.request_id for one in FIRST + SECOND)
