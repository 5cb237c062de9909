"""The sample stream: one Redis stream per domain, which is the replay buffer.

A training round is a pure function of an id range. There is no consumer group and reading deletes nothing, so
a crash loses nothing and a repeat reads the same samples. Trimming is the only loss, and it is counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from redraft_queue import forgotten, keys
from redraft_queue.connection import connect, translated
from redraft_queue.dead_letters import DeadLetter, DeadLetters
from redraft_queue.errors import StreamUnavailable
from redraft_queue.positions import BEGINNING, Backlog, StreamPosition, backlog_at
from redraft_queue.reading import FIELD, Entry, Reader, ReadTally
from redraft_queue.records import Sample
from redraft_queue.settings import QueueSettings

logger = logging.getLogger(__name__)

__all__ = ["Backlog", "DeadLetter", "ReadTally", "SampleStream", "StreamPosition", "connect"]

_EXACT_BELOW = 1_000
"""Redis trims approximately by whole nodes (100 entries), which is no cap at all for small streams."""
_BATCH_SAMPLES = 64
_BATCH_BYTES = 1 << 20
_PAGE = 64
_AGE_TRIM_EVERY_SECONDS = 60.0


class SampleStream:
    """Append, read and measure the streams of all domains. Safe to share between threads.

    Every method raises StreamUnavailable where Redis isn't reached within its timeout, is full or refuses.
    """

    def __init__(self, client: redis.Redis, settings: QueueSettings) -> None:
        self._client = client
        self._settings = settings
        self._dead = DeadLetters(client, settings.dead_maxlen)
        self._age_trimmed: dict[str, float] = {}

    def append(self, samples: Sequence[Sample]) -> list[str]:
        """Append samples, each to its domain's stream, in order; returns their ids.

        Batches are transactions: of StreamUnavailable, the first `written` samples are stored, no later ones.
        Only a lost answer may hide a stored batch; to append it again is harmless, `read` drops duplicates.
        """
        ids: list[str] = []
        for batch in _batches(samples):
            try:
                with translated("append samples"):
                    ids += self._append_batch(batch)
            except StreamUnavailable as error:
                error.written = len(ids)
                raise
        for domain in {sample.domain for sample in samples}:
            self._trim_by_age_at_times(domain)
        return ids

    def _append_batch(self, batch: Sequence[tuple[Sample, bytes]]) -> list[str]:
        limit = self._settings.stream_maxlen
        pipeline = self._client.pipeline(transaction=True)
        for sample, packed in batch:
            pipeline.xadd(
                keys.samples(sample.domain), {FIELD: packed}, maxlen=limit, approximate=limit > _EXACT_BELOW
            )
        by_domain = groupby(sorted((s.domain, s.emitted) for s, _ in batch), key=lambda pair: pair[0])
        for domain, pairs in by_domain:
            pipeline.incrby(keys.tokens(domain), sum(emitted for _, emitted in pairs))
            pipeline.sadd(keys.DOMAINS, domain)
        return [entry_id.decode() for entry_id in pipeline.execute()[: len(batch)]]

    def _trim_by_age_at_times(self, domain: str) -> None:
        now = time.monotonic()
        if now - self._age_trimmed.get(domain, -_AGE_TRIM_EVERY_SECONDS) >= _AGE_TRIM_EVERY_SECONDS:
            self._age_trimmed[domain] = now
            try:
                self.trim_by_age(domain)
            except StreamUnavailable as error:
                # The samples are stored; to raise here would have them stored again.
                logger.warning("old samples stay for a while: %s", error)

    def trim_by_age(self, domain: str) -> int:
        """Drop what is older than `stream_max_age_seconds`, if set; returns the number of samples dropped."""
        if self._settings.stream_max_age_seconds is None:
            return 0
        with translated(f"trim the samples of domain {domain}"):
            seconds, microseconds = self._client.time()  # ids are made by the server's clock
            oldest = seconds + microseconds / 1e6 - self._settings.stream_max_age_seconds
            oldest_ms = max(0, round(oldest * 1000))
            self._client.xtrim(keys.dead(domain), minid=oldest_ms, approximate=False)
            return self._client.xtrim(keys.samples(domain), minid=oldest_ms, approximate=False)

    def position(self, domain: str, after_id: str | None = None) -> StreamPosition:
        """Where the domain's stream stands now; all zero where it doesn't exist.

        `after_id` (BEGINNING: nothing was read yet) is the cursor that `backlog_at` compares this with.
        """
        pipeline = self._client.pipeline(transaction=True)
        pipeline.xinfo_stream(keys.samples(domain))
        pipeline.get(keys.tokens(domain))
        if after_id is not None:
            forgotten.count_after(pipeline, domain, after_id)
        with translated(f"tell the position of domain {domain}"):
            info, tokens, *counts = pipeline.execute(raise_on_error=False)
            if isinstance(info, ResponseError) and "no such key" in str(info):
                return StreamPosition(tokens_added=int(tokens or 0))
            for answer in (info, tokens, *counts):
                if isinstance(answer, Exception):
                    raise answer
        deleted = forgotten.counted(counts, after_id) if after_id is not None else 0
        return _position(info, int(tokens or 0), deleted)

    def backlog(
        self, domain: str, cursor_id: str | None, cursor_ordinal: int, cursor_tokens: int = 0
    ) -> Backlog:
        """How much a cursor has not seen, and how much it never will; one call, whatever the length."""
        position = self.position(domain, cursor_id or BEGINNING)
        return backlog_at(position, cursor_id, cursor_ordinal, cursor_tokens)

    def read(
        self,
        domain: str,
        after_id: str | None,
        through_id: str | None,
        *,
        expected_target: str | None = None,
        expected_tokenizer: str | None = None,
        tally: ReadTally | None = None,
        known: int = 0,
    ) -> Iterator[tuple[str, Sample]]:
        """Samples with after_id < id <= through_id (None: from the oldest; None: up to now), in order of id.

        An entry that is no Sample of this domain, or of another target or tokenizer than expected, goes to
        the dead letters with its reason, once; it never raises. Of samples with one identity the first
        counts, also where it is one of the `known` entries before the range: a batch whose answer was lost
        is appended again, and a range may end between the two. A range is read in pages of 64 and never in
        memory as a whole.
        """
        through = through_id if through_id is not None else self.position(domain).last_id
        if through is None:
            return
        reader = Reader(
            domain, expected_target, expected_tokenizer, tally if tally is not None else ReadTally()
        )
        if after_id is not None:
            for page in self._pages_before(domain, after_id, known):
                reader.know(page)
        for page in self._pages(domain, after_id, through):
            yield from reader.samples(page)
            self._dead.record(domain, reader.take_letters())

    def _pages(self, domain: str, after_id: str | None, through_id: str) -> Iterator[list[Entry]]:
        start = "-" if after_id is None else f"({after_id}"
        while True:
            with translated(f"read the samples of domain {domain}"):
                found = cast("list[Any]", self._client.xrange(keys.samples(domain), start, through_id, _PAGE))
            if not found:
                return
            page: list[Entry] = [(entry_id.decode(), fields or {}) for entry_id, fields in found]
            yield page
            start = f"({page[-1][0]}"

    def _pages_before(self, domain: str, through_id: str, count: int) -> Iterator[list[Entry]]:
        """The `count` entries up to `through_id`, newest first."""
        end = through_id
        while count > 0:
            most = min(count, _PAGE)
            with translated(f"read the samples of domain {domain}"):
                found = cast("list[Any]", self._client.xrevrange(keys.samples(domain), end, "-", most))
            yield [(entry_id.decode(), fields or {}) for entry_id, fields in found]
            if len(found) < most:
                return
            end, count = f"({found[-1][0].decode()}", count - most

    def forgotten(self, domain: str, after_id: str | None, through_id: str | None) -> int:
        """How many samples of a range were deleted on request."""
        ends = (after_id or BEGINNING, through_id or BEGINNING)
        pipeline = self._client.pipeline(transaction=True)
        for end in ends:
            forgotten.count_after(pipeline, domain, end)
        with translated(f"count the deleted samples of domain {domain}"):
            counts = pipeline.execute()
        return forgotten.counted(counts[:2], ends[0]) - forgotten.counted(counts[2:], ends[1])

    def dead(self, domain: str, count: int = 100) -> list[DeadLetter]:
        """The newest dead letters of the domain, newest first."""
        return self._dead.list(domain, count)

    def dead_length(self, domain: str) -> int:
        """How many dead letters of the domain are kept."""
        return self._dead.length(domain)

    def domains(self) -> list[str]:
        """Domains that ever had a sample, sorted."""
        with translated("list the domains"):
            return sorted(name.decode() for name in cast("set[bytes]", self._client.smembers(keys.DOMAINS)))


def _batches(samples: Iterable[Sample]) -> Iterator[list[tuple[Sample, bytes]]]:
    batch: list[tuple[Sample, bytes]] = []
    size = 0
    for sample in samples:
        packed = sample.pack()
        if batch and (len(batch) == _BATCH_SAMPLES or size + len(packed) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((sample, packed))
        size += len(packed)
    if batch:
        yield batch


def _position(info: dict[str, Any], tokens: int, deleted: int) -> StreamPosition:
    last_id = info["last-generated-id"].decode()
    first = info["first-entry"]
    return StreamPosition(
        last_id=None if last_id == "0-0" else last_id,
        entries_added=info["entries-added"],
        length=info["length"],
        first_id=first[0].decode() if first else None,
        tokens_added=tokens,
        forgotten=deleted,
    )
