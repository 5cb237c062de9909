"""Deleting what was asked to be forgotten: the samples of a request, of a user, or of a whole domain.

The stream is read in pages and each page's matches are deleted in one transaction, which also notes their
ids, so that they don't count as lost. A deletion that was cut off is finished by the next one. What a serving
worker still holds in its buffer, and what a running training round has copied, is out of reach: ask again
after a minute, and when the round has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import msgpack
import redis

from redraft_queue import keys
from redraft_queue.connection import translated
from redraft_queue.forgotten import remember
from redraft_queue.reading import FIELD

_PAGE = 64
_MOST_RANGES = 1_000
_Page = list[tuple[bytes, dict[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class IdRange:
    """Deleted entries from `first_id` to `last_id`, both included."""

    first_id: str
    last_id: str
    samples: int


@dataclass(slots=True)
class Forgotten:
    """What was deleted in one domain. The samples of a request that was answered twice count twice."""

    domain: str
    samples: int = 0
    dead_letters: int = 0
    ranges: list[IdRange] = field(default_factory=list)
    """In order of id: each is a run of neighbours; the 1,000th takes in all that follow.
    A version whose training range overlaps one of them may have seen what was deleted."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def forget_request(client: redis.Redis, domain: str, request_id: str) -> Forgotten:
    """Delete all samples and dead letters of a request. Raises StreamUnavailable."""
    return _forget(client, domain, _Match("request_id", request_id))


def forget_user(client: redis.Redis, domain: str, user: str) -> Forgotten:
    """The same for a user, of whom samples keep the `user_hash`. Raises StreamUnavailable."""
    return _forget(client, domain, _Match("user", user))


def forget_domain(client: redis.Redis, domain: str) -> Forgotten:
    """Delete all that Redis keeps of a domain: samples, dead letters, counters, schedule, its name.

    Its next sample begins the stream anew. Versions and a running round's lock are left alone. Raises
    StreamUnavailable.
    """
    pipeline = client.pipeline(transaction=True)
    for end in (pipeline.xrange, pipeline.xrevrange):
        end(keys.samples(domain), count=1)
    pipeline.xlen(keys.samples(domain))
    pipeline.xlen(keys.dead(domain))
    names = (keys.samples, keys.dead, keys.dead_entries, keys.forgotten, keys.tokens, keys.schedule)
    pipeline.delete(*(name(domain) for name in names))
    pipeline.srem(keys.DOMAINS, domain)
    with translated(f"forget domain {domain}"):
        first, last, length, dead, *_ = pipeline.execute()
    ranges = [IdRange(first[0][0].decode(), last[0][0].decode(), length)] if length else []
    return Forgotten(domain, length, dead, ranges)


def _forget(client: redis.Redis, domain: str, match: _Match) -> Forgotten:
    done = Forgotten(domain)
    with translated(f"forget samples of domain {domain}"):
        _forget_samples(client, domain, match, done)
        _forget_dead_letters(client, domain, match, done)
    return done


def _forget_samples(client: redis.Redis, domain: str, match: _Match, done: Forgotten) -> None:
    joins = False
    for page in _pages(client, keys.samples(domain)):
        found = [match.is_in(fields.get(FIELD, b"")) for _, fields in page]
        ids = [entry_id.decode() for (entry_id, _), hit in zip(page, found, strict=True) if hit]
        if ids:
            pipeline = client.pipeline(transaction=True)
            pipeline.xdel(keys.samples(domain), *ids)
            remember(pipeline, domain, ids)
            done.samples += pipeline.execute()[0]
        for (entry_id, _), hit in zip(page, found, strict=True):
            if hit:
                _add_range(done.ranges, entry_id.decode(), joins)
            joins = hit


def _add_range(ranges: list[IdRange], entry_id: str, joins: bool) -> None:
    if ranges and (joins or len(ranges) >= _MOST_RANGES):
        last = ranges[-1]
        ranges[-1] = IdRange(last.first_id, entry_id, last.samples + 1)
    else:
        ranges.append(IdRange(entry_id, entry_id, 1))


def _forget_dead_letters(client: redis.Redis, domain: str, match: _Match, done: Forgotten) -> None:
    """By their content, and by the ids of entries that were deleted, by this call or one before."""
    for page in _pages(client, keys.dead(domain)):
        entries = [fields.get(b"entry", b"").decode(errors="replace") for _, fields in page]
        deleted = client.zmscore(keys.forgotten(domain), entries)
        hits = [
            (entry_id, entry)
            for (entry_id, fields), entry, score in zip(page, entries, deleted, strict=True)
            if score is not None or match.is_in(fields.get(b"sample", b""))
        ]
        if hits:
            pipeline = client.pipeline(transaction=True)
            pipeline.xdel(keys.dead(domain), *(entry_id for entry_id, _ in hits))
            pipeline.zrem(keys.dead_entries(domain), *(entry for _, entry in hits))
            done.dead_letters += pipeline.execute()[0]


def _pages(client: redis.Redis, key: str) -> Iterator[_Page]:
    """What the stream holds now, in pages; later entries are not read."""
    newest = cast("Any", client.xrevrange(key, count=1))
    start = "-"
    while newest:
        page = cast("_Page", client.xrange(key, start, newest[0][0], _PAGE))
        if not page:
            return
        yield page
        start = f"({page[-1][0].decode()}"


class _Match:
    """Whether a packed sample, or what is left of one, is of this request or user."""

    def __init__(self, name: str, value: str) -> None:
        self._name, self._value = name, value
        self._bytes = value.encode("utf-8", "surrogatepass")
        self._key = msgpack.packb(name)
        self._pair = self._key + msgpack.packb(value, unicode_errors="surrogatepass")

    def is_in(self, packed: bytes) -> bool:
        """An entry that can't be read, and whose field isn't in what is left of it, is a match where the text
        stands anywhere in it: rather one useless entry too many than one too few.
        """
        if self._bytes not in packed:
            return False
        if self._pair in packed:
            return True
        try:
            document = msgpack.unpackb(packed, raw=False, strict_map_key=False)
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
            return self._key not in packed
        return isinstance(document, dict) and document.get(self._name) == self._value
