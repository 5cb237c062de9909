"""Backlog arithmetic, without a server."""

from __future__ import annotations

import pytest
from redraft_queue.positions import StreamPosition, backlog_at, id_key


def position(added: int, length: int, tokens: int = 0) -> StreamPosition:
    """A stream whose n-th entry has the id n-0, trimmed to its last `length`."""
    first = f"{added - length + 1}-0" if length else None
    return StreamPosition(f"{added}-0" if added else None, added, length, first, tokens)


@pytest.mark.parametrize(
    ("added", "length", "cursor", "unseen", "lost"),
    [
        (0, 0, None, 0, 0),
        (10, 10, None, 10, 0),
        (10, 7, None, 7, 3),
        (10, 10, 10, 0, 0),
        (10, 10, 4, 6, 0),
        (10, 7, 3, 7, 0),  # trimmed exactly up to the cursor
        (10, 7, 2, 7, 1),
        (10, 7, 5, 5, 0),
        (1000, 50, 100, 50, 850),
        (10, 0, 4, 0, 6),
        (10, 0, 10, 0, 0),
    ],
)
def test_what_is_unseen_and_what_is_lost(
    added: int, length: int, cursor: int | None, unseen: int, lost: int
) -> None:
    backlog = backlog_at(position(added, length), None if cursor is None else f"{cursor}-0", cursor or 0)
    assert (backlog.unseen, backlog.lost, backlog.restarted) == (unseen, lost, False)
    assert backlog.new_entries == unseen + lost
    assert backlog.length == length


@pytest.mark.parametrize(
    ("now", "unseen", "lost"),
    [
        (StreamPosition(), 0, 0),
        (StreamPosition("900-0", 3, 3, "800-0"), 3, 0),  # fewer than the cursor's ordinal
        (StreamPosition("900-0", 40, 40, "800-0"), 40, 0),  # more, but none was trimmed
        (StreamPosition("900-0", 40, 30, "800-0"), 30, 10),
        (StreamPosition("5-0", 40, 40, "1-0"), 40, 0),  # ids went back
    ],
)
def test_a_stream_begun_anew_is_all_new(now: StreamPosition, unseen: int, lost: int) -> None:
    backlog = backlog_at(now, "100-0", 20, cursor_tokens=500)
    assert (backlog.unseen, backlog.lost, backlog.restarted) == (unseen, lost, True)


def test_new_tokens() -> None:
    assert backlog_at(position(10, 10, tokens=900), "4-0", 4, cursor_tokens=300).new_tokens == 600
    assert backlog_at(position(10, 10, tokens=200), "4-0", 4, cursor_tokens=300).new_tokens == 200


def test_ids_compare_as_numbers() -> None:
    assert id_key("9-5") < id_key("10-0") < id_key("10-2") < id_key("10-11")
    assert id_key("10") == (10, 0)
