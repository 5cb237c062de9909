"""Samples that left a stream before any training round saw them: counted, never silent."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from redraft_models.errors import RegistryError
from redraft_models.registry import Registry
from redraft_queue.errors import QueueError
from redraft_queue.positions import BEGINNING, Backlog, StreamPosition, backlog_at
from redraft_queue.stream import SampleStream

logger = logging.getLogger(__name__)

Cursor = tuple[str | None, int]


class LossMeter:
    """Compares each domain's stream with its cursor every `period_seconds`.

    The cursor is the tags of the newest version that a round made.

    A cursor's loss starts again at zero when a round moves it, so the increases are added up. A stream that
    was begun anew, by a flush or on an empty disk, has lost what was unseen when it was last looked at.
    """

    def __init__(
        self,
        registry: Registry,
        stream: SampleStream,
        domains: Callable[[], Sequence[str]],
        period_seconds: float = 30.0,
    ) -> None:
        self._registry = registry
        self._stream = stream
        self._domains = domains
        self._period_seconds = period_seconds
        self._seen: dict[str, tuple[Cursor, int]] = {}
        self._left: dict[str, tuple[int, int]] = {}
        """Domain -> entries ever added, and those that no round has seen, at the last look."""
        self._lost: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redraft-loss", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a look that waits for a server is left behind."""
        self._stop.set()
        self._thread.join(timeout=2.0)

    @property
    def lost(self) -> Mapping[str, int]:
        """Samples lost since this worker started, by domain."""
        return dict(self._lost)

    def look(self) -> None:
        """One pass. A server that is away ends it; the next one will find what was lost meanwhile."""
        for domain in self._domains():
            try:
                self._measure(domain)
            except (RegistryError, QueueError) as error:
                logger.debug("losses of domain %s are unknown: %s", domain, error)
                return

    def _measure(self, domain: str) -> None:
        trained = self._registry.cursor(domain)
        tags = trained.tags if trained is not None else {}
        ordinal = tags.get("stream_last_ordinal", "0")
        cursor = (tags.get("stream_last_id") or None, int(ordinal) if ordinal.isdigit() else 0)
        position = self._stream.position(domain, cursor[0] or BEGINNING)
        backlog = backlog_at(position, *cursor)
        self._begun_anew(domain, position, backlog)
        # What was lost before this worker started is not its to count.
        before_cursor, before = self._seen.get(domain, (cursor, backlog.lost))
        self._seen[domain] = (cursor, backlog.lost)
        self._lost[domain] += max(0, backlog.lost - (before if before_cursor == cursor else 0))

    def _begun_anew(self, domain: str, position: StreamPosition, backlog: Backlog) -> None:
        """The count of entries ever added falls only where the stream was deleted as a whole."""
        added, unseen = self._left.get(domain, (0, 0))
        if position.entries_added < added:
            logger.warning(
                "the stream of domain %s was begun anew; %d unseen samples are lost", domain, unseen
            )
            self._lost[domain] += unseen
        self._left[domain] = (position.entries_added, backlog.unseen)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception:
                logger.exception("measuring losses failed")
            self._stop.wait(self._period_seconds)
