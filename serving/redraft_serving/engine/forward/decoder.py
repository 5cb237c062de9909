"""One model with its weights, able to read tokens into a slot cache: the seam between rounds and forwards.

Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from redraft_serving.engine.cache import SlotCache, Step


class Decoder(Protocol):
    """A causal language model over slots."""

    layers: int
    device: torch.device
    least_rows: int
    """Products of fewer rows take longer than products of so many: such batches are padded."""

    def logits(self, cache: SlotCache, step: Step, tokens_BT: Tensor, keep: int) -> Tensor:
        """Logits [B, keep, V] of the last `keep` tokens; keys and values of all are stored."""

    def refresh(self) -> None:
        """The module's weights have changed in place: take them over."""

    @property
    def nbytes(self) -> int:
        """Bytes held beside the module's own tensors."""


def read(
    decoder: Decoder,
    cache: SlotCache,
    slots: Sequence[int],
    tokens_BT: Tensor,
    starts: Sequence[int],
    counts: Sequence[int] | None = None,
    keep: int = 0,
) -> Tensor:
    """Logits [B, keep or T, V] of tokens at positions starts[b], starts[b] + 1, ...; their keys and values
    are stored.

    Of row b the first counts[b] tokens are real, the others padding; so is a token before position 0. Every
    position up to a token's own is attended to, so the slot must hold what came before it.
    """
    rows, wanted = tokens_BT.shape
    front = padded_length(rows, wanted, decoder.least_rows) - wanted
    counts = [wanted] * rows if counts is None else counts
    places = [
        [-1] * front + [start + t if t < count else -1 for t in range(wanted)]
        for start, count in zip(starts, counts, strict=True)
    ]
    step = cache.step(slots, places)
    return decoder.logits(cache, step, pad(tokens_BT, (front, 0)), keep or wanted)


def padded_length(rows: int, length: int, least: int) -> int:
    """T' >= T of a batch [B, T] that has at least `least` rows in its products."""
    return max(length, -(-least // rows))
