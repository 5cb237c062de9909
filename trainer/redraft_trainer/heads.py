"""Trimmed heads in training: which ids the samples use, and a loss on these ids alone.

Distilling onto a trimmed head is both cheaper, as the head is the widest matrix of a small draft, and what
serving asks for: the draft's law on the subset S, against the target's law on S. Legend: N positions, S ids
in the head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from redraft_queue.records import Sample
from torch import Tensor

from redraft_trainer.data import Batch, Example
from redraft_trainer.losses import Targets

SMALLEST = 1e-6
"""Least probability inside of a head that a position's law is divided by."""


class IdCounts:
    """How much samples use each id: the tokens that the target emitted, and what its law gives to others.

    The law adds the ids that were likely and happened not to be drawn, so fewer samples tell as much.
    """

    def __init__(self, vocab_size: int) -> None:
        self._weights = np.zeros(vocab_size)

    def add(self, sample: Sample) -> None:
        """Count one sample: 1 for each emitted token, and its probability for each logged one."""
        self._count(np.asarray(sample.output_ids), np.ones(sample.emitted))
        logged = np.frombuffer(sample.topk_ids, dtype="<i4")
        logprobs = np.frombuffer(sample.topk_logprobs, dtype="<f2").astype(np.float64)
        self._count(logged, np.exp(np.minimum(logprobs, 0.0)))

    def through(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Count samples on their way to somebody else, so that a long file is read once."""
        for sample in samples:
            self.add(sample)
            yield sample

    def weights(self) -> dict[int, float]:
        """Id -> weight, for every id that occurred."""
        return {int(token): float(self._weights[token]) for token in self._weights.nonzero()[0]}

    def _count(self, ids: np.ndarray, weights: np.ndarray) -> None:
        # A sample with an id that no token has is refused later; here it must not stop the others.
        known = (ids >= 0) & (ids < len(self._weights))
        np.add.at(self._weights, ids[known], weights[known])


def heldout_coverage(examples: Sequence[Example], head_ids: Tensor | None) -> float | None:
    """Share of the target's tokens in `examples` that a head scores; None without examples."""
    if not examples:
        return None
    if head_ids is None:
        return 1.0
    tokens = torch.cat([example.targets.token_N for example in examples])
    return float(torch.isin(tokens, head_ids.long()).double().mean())


def places(head_ids: Tensor, vocab_size: int, device: torch.device) -> Tensor:
    """Id -> its place in a trimmed head [V], -1 outside of it."""
    place_V = torch.full((vocab_size,), -1, dtype=torch.long, device=device)
    place_V[head_ids.to(device, torch.long)] = torch.arange(len(head_ids), device=device)
    return place_V


def inside(batch: Batch, place_V: Tensor) -> Batch:
    """A batch in the terms of a trimmed head: places instead of ids, laws renormalised on S.

    Positions whose token is outside of the head go: nothing that the draft can propose is kept there. What
    the log lumps together as the tail counts as inside.
    """
    held = place_V[batch.targets.token_N] >= 0
    targets = batch.targets[held]
    place_NK = place_V[targets.topk_ids_NK]
    valid_NK = targets.valid_NK & (place_NK >= 0)
    probs_NK = torch.where(valid_NK, targets.topk_probs_NK, 0.0)
    total_N = (probs_NK.sum(-1) + targets.tail_N).clamp_min(SMALLEST)
    within = Targets(
        token_N=place_V[targets.token_N],
        topk_ids_NK=place_NK.clamp_min(0),
        topk_probs_NK=probs_NK / total_N[:, None],
        tail_N=targets.tail_N / total_N,
        valid_NK=valid_NK,
    )
    return Batch(batch.input_ids_BT, batch.loss_index_N[held], within, batch.row_N[held])
