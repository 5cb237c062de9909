"""Samples on their way to the stream: off the request path, bounded, and never in anybody's way.

`offer` is called on the inference thread: it takes a lock for an append and returns. A thread writes batches;
while Redis is away it waits and tries again, and what no longer fits is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from redraft_queue.errors import QueueError, StreamUnavailable
from redraft_queue.records import Sample

logger = logging.getLogger(__name__)

MAX_BUFFER_BYTES = 256 << 20
"""The buffer's other limit: a sample of a long answer holds half a megabyte."""

_BATCH = 64
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0

NO_STREAM, BUFFER_FULL, INVALID, SHUTDOWN = "no_stream", "buffer_full", "invalid", "shutdown"


class Stream(Protocol):
    """The part of `SampleStream` that capture needs."""

    def append(self, samples: Sequence[Sample]) -> list[str]:
        """Append samples; raises StreamUnavailable with the number `written`."""


class Capture:
    """A bounded buffer before the stream, and the thread that empties it.

    `connect` opens the stream on the writing thread; None means that there is none, and every sample is
    dropped and counted. `buffer` is the number of samples held, those being written included.
    """

    def __init__(self, connect: Callable[[], Stream] | None, buffer: int) -> None:
        self._connect = connect
        self._buffer = buffer
        self._waiting: deque[Sample] = deque()
        self._bytes = 0
        self._dropped: Counter[str] = Counter()
        self._written = 0
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="redraft-capture", daemon=True)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Samples that were not kept, by reason: no_stream, buffer_full, invalid, shutdown."""
        with self._changed:
            return dict(self._dropped)

    @property
    def written(self) -> int:
        """Samples that Redis has acknowledged."""
        with self._changed:
            return self._written

    def start(self) -> None:
        """Start the writing thread."""
        if self._connect is not None:
            self._thread.start()

    def offer(self, sample: Sample) -> None:
        """Take a sample, or drop and count it. Never blocks on Redis, never raises."""
        with self._changed:
            if self._connect is None:
                self._dropped[NO_STREAM] += 1
            elif self._deadline is not None:
                self._dropped[SHUTDOWN] += 1
            elif len(self._waiting) >= self._buffer or self._bytes + _size(sample) > MAX_BUFFER_BYTES:
                self._dropped[BUFFER_FULL] += 1
            else:
                self._waiting.append(sample)
                self._bytes += _size(sample)
                self._changed.notify()

    def stop(self, deadline_seconds: float = 5.0) -> None:
        """Write what is held, for at most `deadline_seconds`; the rest is dropped and counted."""
        with self._changed:
            self._deadline = time.monotonic() + deadline_seconds
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(deadline_seconds)
        with self._changed:
            if self._waiting:
                logger.warning("%d samples could not be written before the end", len(self._waiting))
                self._dropped[SHUTDOWN] += len(self._waiting)
                self._waiting.clear()

    def _run(self) -> None:
        stream: Stream | None = None
        pause = _FIRST_PAUSE_SECONDS
        while (batch := self._next_batch()) is not None:
            try:
                stream = stream or self._open()
                self._write(stream, batch)
                if pause > _FIRST_PAUSE_SECONDS:
                    logger.info("samples are written again")
                pause = _FIRST_PAUSE_SECONDS
            except QueueError as error:
                if pause == _FIRST_PAUSE_SECONDS:
                    logger.warning("samples wait in this process: %s", error)
                self._wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _open(self) -> Stream:
        assert self._connect is not None
        return self._connect()

    def _next_batch(self) -> list[Sample] | None:
        """The oldest samples, left in the buffer until they are written; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._deadline is not None:
                    return None
                self._changed.wait()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return None
            return [self._waiting[at] for at in range(min(_BATCH, len(self._waiting)))]

    def _write(self, stream: Stream, batch: list[Sample]) -> None:
        """Append a batch. What can't even be written down is dropped, alone. Raises QueueError."""
        try:
            stream.append(batch)
        except StreamUnavailable as error:
            self._settle(error.written)
            raise
        except Exception as error:
            if len(batch) > 1:
                for sample in batch:
                    self._write(stream, [sample])
                return
            logger.warning("a sample can't be written: %s: %s", type(error).__name__, error)
            self._settle(1, INVALID)
            return
        self._settle(len(batch))

    def _settle(self, count: int, dropped: str | None = None) -> None:
        """The `count` oldest samples have left the buffer."""
        with self._changed:
            # Fewer are there where `stop` has given up on a write that then came through.
            count = min(count, len(self._waiting))
            for _ in range(count):
                self._bytes -= _size(self._waiting.popleft())
            if dropped is None:
                self._written += count
            else:
                self._dropped[dropped] += count

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if self._deadline is None:
                self._changed.wait_for(lambda: self._deadline is not None, seconds)
                return
        # At the end there is no time for long pauses, nor any use in short ones.
        time.sleep(min(seconds, _FIRST_PAUSE_SECONDS))


def _size(sample: Sample) -> int:
    arrays = len(sample.topk_ids) + len(sample.topk_logprobs) + len(sample.tail_mass)
    return arrays + 8 * (len(sample.prompt_ids) + 3 * len(sample.output_ids))
