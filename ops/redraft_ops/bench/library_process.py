"""The process that transformers decodes in, and this process' end of the pipe to it.

It has models of its own, so that neither side shares a thread, a lock or a cache with the other; it sleeps
while a server is measured.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redraft_models.settings import ModelSettings

from redraft_ops.bench.answers import Ask, Block
from redraft_ops.errors import BenchFailed

POLL_SECONDS = 0.5
STOP_SECONDS = 10.0


class LibraryProcess:
    """Starts with the first call, ends with the `with` block."""

    def __init__(self, models: ModelSettings, cache_dir: Path, k: int, threads: int | None) -> None:
        self._arguments = (models, cache_dir, k, threads)
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, kind: str, asks: Sequence[Ask], clients: int) -> Block:
        """Answer a block with `generate`, `assisted` or `continuous_batching`. Raises BenchFailed."""
        block: Block = self._call(kind, tuple(asks), clients)
        return block

    def gap(self, prefix: Sequence[int], one: int, other: int) -> float:
        """Difference of two tokens' logits after a prefix. Raises BenchFailed."""
        return float(self._call("gap", tuple(prefix), one, other))

    def _call(self, name: str, *arguments: Any) -> Any:
        pipe = self._pipe or self._start()
        try:
            pipe.send((name, arguments))
            while not pipe.poll(POLL_SECONDS):
                if not self._process.is_alive():
                    raise EOFError
            error, value = pipe.recv()
        except (EOFError, OSError) as problem:
            raise BenchFailed(f"the process of transformers ended while it ran {name}") from problem
        if error is not None:
            raise BenchFailed(f"transformers failed in {name}: {error}")
        return value

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, *self._arguments), daemon=True)
        self._process.start()
        other.close()
        return self._pipe

    def stop(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(STOP_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._pipe = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(pipe: Connection, models: ModelSettings, cache_dir: Path, k: int, threads: int | None) -> None:
    """Load the pair, then answer calls until the other end is closed."""
    # A session of its own, as the serving worker has: Linux shares the processor out by session first, and
    # Ctrl-C reaches the parent alone, which closes the pipe.
    os.setsid()
    os.dup2(2, 1)  # standard output belongs to the command's own data
    import torch
    from redraft_models.loading import load_pair
    from redraft_models.quiet import quiet_transformers

    from redraft_ops.bench.library import Library

    if threads:
        torch.set_num_threads(threads)
    with quiet_transformers(), torch.inference_mode(), suppress(EOFError, OSError):
        library: Library | None = None
        while True:
            name, arguments = pipe.recv()
            try:
                library = library or Library(load_pair(models, cache_dir), k)
                pipe.send((None, getattr(library, name)(*arguments)))
            except Exception as error:  # told to the parent, whatever it is
                pipe.send((f"{type(error).__name__}: {error}", None))
