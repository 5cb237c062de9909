"""Samples in a file, so that healing can be tried again without asking the target again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgpack
from redraft_queue.records import Sample, UnreadableSample

from redraft_ops.errors import UsageError


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write packed samples one after the other; the file appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(path.suffix + ".part")
    with unfinished.open("wb") as out:
        for sample in samples:
            out.write(msgpack.packb(sample.pack()))
    unfinished.replace(path)


def read_samples(path: Path, target_fingerprint: str) -> list[Sample]:
    """The samples of a file. Raises UsageError where they are another target's, or can't be read."""
    try:
        with path.open("rb") as source:
            samples = [Sample.unpack(packed) for packed in msgpack.Unpacker(source)]
    except (OSError, ValueError, TypeError, UnreadableSample) as error:
        raise UsageError(f"--samples {path} can't be read: {error}") from error
    if not samples:
        raise UsageError(f"--samples {path} holds no sample")
    foreign = next((s for s in samples if s.target_fingerprint != target_fingerprint), None)
    if foreign is not None:
        raise UsageError(
            f"--samples {path} is from target {foreign.target_fingerprint}, "
            f"but this one is {target_fingerprint}"
        )
    return samples
