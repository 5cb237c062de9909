"""The token ids that a draft's output head scores, where it does not score them all.

The head of a small draft costs as much as its layers, and a domain uses a few thousand of its rows. With a
trimmed head the draft's law is a law on a subset of the ids (`laws.restrict`). What is served stays the
target's own, as the target may still emit every id; of acceptance, at most the target's probability outside
of the subset is lost. Legend: S ids in the head, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from redraft_models.errors import AdapterRejected, AdapterSpoilt

HEAD_FILE = "head.safetensors"
HEAD_TENSOR = "head_ids"
HEAD_SHA256 = "head_sha256"
"""Where a provenance or a draft.json names the file's hash."""
DEFAULT_SIZE = 8192
MULTIPLE = 64
"""Rows of a head come in multiples of this, which packed and tiled matrix products like."""
LEAST_SAVING = 2
"""A vocabulary of fewer than this many times the size isn't trimmed: there is little to save."""
_HEADER_BYTES = 4096


@dataclass(frozen=True, eq=False)
class HeadIds:
    """An immutable, ascending set of token ids. Raises ValueError for ids that are none.

    Ascending, so that ties between equal logits fall as they do in a full head: to the lowest id.
    """

    ids: Tensor
    """int32 [S] on the CPU."""

    def __post_init__(self) -> None:
        problem = _problem(self.ids, None)
        if problem is not None:
            raise ValueError(f"the ids of a head {problem}")

    def __len__(self) -> int:
        return len(self.ids)

    def coverage(self, counts: Mapping[int, float]) -> float | None:
        """Share of `counts` (id -> how often or how likely) that falls on these ids; None without any."""
        total = sum(counts.values())
        own = set(self.ids.tolist())
        return sum(count for token, count in counts.items() if token in own) / total if total else None


def rounded_size(size: int) -> int:
    """The next multiple of MULTIPLE; smaller sizes, which only toys have, stay as they are."""
    return size if size < MULTIPLE else -(-size // MULTIPLE) * MULTIPLE


def choose_head_ids(
    counts: Mapping[int, float],
    vocab_size: int,
    size: int = DEFAULT_SIZE,
    always: Iterable[int] = (),
) -> HeadIds | None:
    """The head for text that uses ids as `counts` says (id -> how often or how likely); None is a full head.

    First the ids of `always` (what ends an answer), then those counted, most used first, then the lowest
    ids: a BPE vocabulary is in the order of its merges, so its low ids are the frequent ones of general text.
    `size` is rounded up (`rounded_size`); 0, or a vocabulary of less than LEAST_SAVING times as many ids,
    leaves the head full. The same counts give the same head.
    """
    size = rounded_size(size)
    if size <= 0 or vocab_size < LEAST_SAVING * size:
        return None
    used = sorted((-count, token) for token, count in counts.items() if count > 0)
    kept = {token for token in always if 0 <= token < vocab_size}
    for token in chain((token for _, token in used), range(vocab_size)):
        if len(kept) >= size:
            break
        if 0 <= token < vocab_size:
            kept.add(token)
    return HeadIds(torch.tensor(sorted(kept), dtype=torch.int32))


def write_head(path: Path, head_ids: Tensor) -> str:
    """Write the ids as safetensors; answers the file's sha256. Raises AdapterRejected for unsound ids."""
    problem = _problem(head_ids, None)
    if problem is not None:
        raise AdapterRejected(f"the ids of the head {problem}; nothing was written")
    save_file({HEAD_TENSOR: head_ids.cpu().contiguous()}, path, metadata={"format": "pt"})
    path.chmod(0o644)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_head(path: Path, sha256: object, vocab_size: int) -> Tensor | None:
    """The ids in a head file, int32 [S], or None where there is no file and no hash names one.

    Raises AdapterRejected, in one sentence, unless file and hash belong together and the file holds nothing
    but ascending ids below `vocab_size`; AdapterSpoilt where the file's hash is not the recorded one.
    """
    if not path.is_file():
        if sha256 is not None:
            raise AdapterRejected(f"{path.name} is missing, although its hash is recorded")
        return None
    most, size = 4 * vocab_size + _HEADER_BYTES, path.stat().st_size
    if size > most:
        raise AdapterRejected(f"{path.name} has {size} bytes; ids of this vocabulary need at most {most}")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise AdapterSpoilt(f"{path.name} has sha256 {found}, the one recorded is {sha256}")
    ids = _parse(content, path.name)
    problem = _problem(ids, vocab_size)
    if problem is not None:
        raise AdapterRejected(f"the ids in {path.name} {problem}")
    return ids


def _parse(content: bytes, name: str) -> Tensor:
    try:
        tensors: dict[str, Tensor] = load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise AdapterRejected(f"{name} is not a whole safetensors file: {error}") from error
    if tensors.keys() != {HEAD_TENSOR}:
        held = ", ".join(sorted(tensors)) or "nothing"
        raise AdapterRejected(f"{name} holds {held:.80}, not {HEAD_TENSOR!r} alone")
    return tensors[HEAD_TENSOR]


def _problem(ids: Tensor, vocab_size: int | None) -> str | None:
    """What is wrong with the ids of a head, as the end of a sentence; None if they are sound."""
    if ids.dtype != torch.int32 or ids.dim() != 1 or not len(ids):
        return f"are {ids.dtype} of shape {list(ids.shape)}, where int32 in one dimension is needed"
    if not bool((ids[1:] > ids[:-1]).all()):
        return "are not in rising order, each once"
    lowest, highest = int(ids[0]), int(ids[-1])
    if lowest < 0 or (vocab_size is not None and highest >= vocab_size):
        return f"run from {lowest} to {highest}, outside of a vocabulary of {vocab_size}"
    return None
