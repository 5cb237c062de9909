"""The ids of samples that were deleted on request: how many of them lie behind a cursor.

A sorted set per domain, scored by an id's milliseconds. An id tells when a sample was written, and nothing of
what it held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.client import Pipeline

from redraft_queue import keys
from redraft_queue.positions import id_key

MOST_KEPT = 100_000
"""Ids kept per domain, newest first: as many as a stream has entries by default."""


def remember(pipeline: Pipeline, domain: str, ids: Sequence[str]) -> None:
    """Queue that these entries were deleted, in the transaction that deletes them."""
    key = keys.forgotten(domain)
    pipeline.zadd(key, {entry_id: id_key(entry_id)[0] for entry_id in ids})
    pipeline.zremrangebyrank(key, 0, -MOST_KEPT - 1)


def count_after(pipeline: Pipeline, domain: str, after_id: str) -> None:
    """Queue two commands whose answers `counted` reads."""
    milliseconds = id_key(after_id)[0]
    pipeline.zcount(keys.forgotten(domain), f"({milliseconds}", "+inf")
    # Entries of one batch share their milliseconds.
    pipeline.zrangebyscore(keys.forgotten(domain), milliseconds, milliseconds)


def counted(answers: Sequence[Any], after_id: str) -> int:
    """How many deleted entries lie behind the cursor."""
    later, together = answers
    return int(later) + sum(id_key(entry.decode()) > id_key(after_id) for entry in together)
