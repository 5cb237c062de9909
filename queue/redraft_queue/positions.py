"""Where a stream stands, and how much of it a cursor has not seen: arithmetic on counters."""

from __future__ import annotations

from dataclasses import dataclass

BEGINNING = "0-0"
"""A cursor before every entry."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A consistent snapshot; `last_id`, `entries_added` and `tokens_added` together are a cursor."""

    last_id: str | None = None
    """Id of the newest entry ever added; None where there was none."""
    entries_added: int = 0
    """Entries ever added, trimmed ones included: the ordinal of `last_id`."""
    length: int = 0
    first_id: str | None = None
    """Id of the oldest entry that is still there."""
    tokens_added: int = 0
    """Output tokens ever added."""
    forgotten: int = 0
    """Entries that were deleted on request, of those behind the cursor that was asked for; else 0."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What lies behind a cursor. new_entries = unseen + lost; what was deleted on request is neither."""

    unseen: int
    """Entries that can still be read."""
    lost: int
    """Entries that were trimmed before the cursor reached them."""
    length: int
    new_entries: int
    new_tokens: int
    """Output tokens added since the cursor, lost and deleted ones included."""
    restarted: bool = False
    """The stream was deleted and begun anew after the cursor was taken: all that it holds is new."""


def id_key(entry_id: str) -> tuple[int, int]:
    """A stream id as numbers: '9-0' comes before '10-0'."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def backlog_at(
    position: StreamPosition, cursor_id: str | None, cursor_ordinal: int, cursor_tokens: int = 0
) -> Backlog:
    """The backlog of a cursor (None and 0: nothing was read yet).

    Trimming removes the oldest entries only, so of `new` entries the last `length` are there and the rest is
    lost. Deleting an entry lowers the length and leaves `entries_added` alone, so what was deleted behind the
    cursor is taken off `new`; with what was deleted before it, `length` is still at least what is left of
    `new`. A stream begun anew is known by counters that fell, or by more entries gone than were ever trimmed.
    Once it has trimmed as many as the cursor's ordinal, it can't be told apart; `lost` is then too small.
    """
    restarted = cursor_id is not None and _restarted(position, cursor_id, cursor_ordinal)
    new = max(0, position.entries_added - (0 if restarted else cursor_ordinal) - position.forgotten)
    unseen = min(position.length, new)
    tokens = position.tokens_added - (0 if restarted else cursor_tokens)
    return Backlog(
        unseen=unseen,
        lost=new - unseen,
        length=position.length,
        new_entries=new,
        new_tokens=tokens if tokens >= 0 else position.tokens_added,
        restarted=restarted,
    )


def _restarted(position: StreamPosition, cursor_id: str, cursor_ordinal: int) -> bool:
    if position.last_id is None or id_key(position.last_id) < id_key(cursor_id):
        return True
    if position.entries_added < cursor_ordinal:
        return True
    cursor_is_gone = position.first_id is None or id_key(position.first_id) > id_key(cursor_id)
    return cursor_is_gone and position.entries_added - position.length < cursor_ordinal
