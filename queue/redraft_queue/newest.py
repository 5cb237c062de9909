"""A domain's newest samples, for a round of another domain that shares its draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import redis

from redraft_queue import keys
from redraft_queue.connection import translated
from redraft_queue.reading import Entry, Reader, ReadTally
from redraft_queue.records import Sample

_PAGE = 64


def newest_samples(
    client: redis.Redis,
    domain: str,
    through_id: str | None,
    *,
    expected_target: str,
    expected_tokenizer: str,
    most_entries: int,
) -> Iterator[Sample]:
    """Samples up to `through_id` (None: there are none), newest first, among at most `most_entries` entries.

    What can't be used is left out, and no dead letter: this is nobody's range. Raises StreamUnavailable.
    """
    reader = Reader(domain, expected_target, expected_tokenizer, ReadTally())
    left, end = most_entries, through_id
    while left > 0 and end is not None:
        with translated(f"read the newest samples of domain {domain}"):
            found = cast("list[Any]", client.xrevrange(keys.samples(domain), max=end, count=min(_PAGE, left)))
        page: list[Entry] = [(entry_id.decode(), fields or {}) for entry_id, fields in found]
        for _, sample in reader.samples(page):
            yield sample
        reader.take_letters()
        left -= len(page)
        end = f"({page[-1][0]}" if page else None
