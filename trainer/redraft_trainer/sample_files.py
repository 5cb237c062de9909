"""Samples in files: how a round hands a part of the stream to its training process.

One msgpack byte string per sample, one after the other, so that neither side holds more than one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgpack
from redraft_queue.records import Sample


class SampleWriter:
    """Appends samples to a file and counts their requests and tokens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._requests: set[str] = set()
        self.tokens = 0

    @property
    def requests(self) -> int:
        """Different requests; each may have several choices."""
        return len(self._requests)

    def __enter__(self) -> Self:
        self._file = self._path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, sample: Sample) -> None:
        """Append one."""
        if self._file is None:
            raise ValueError(f"{self._path.name} is not open for writing")
        self._file.write(msgpack.packb(sample.pack()))
        self._requests.add(sample.request_id)
        self.tokens += sample.emitted


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, in order."""
    with path.open("rb") as file:
        for packed in msgpack.Unpacker(file, raw=False, max_buffer_size=0):
            yield Sample.unpack(packed)
