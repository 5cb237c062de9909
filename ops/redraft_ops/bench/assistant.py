"""transformers' assisted generation with a chosen acceptance, as `controlled.py` does for our engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from redraft_models.loading import ModelPair
from torch import Tensor

from redraft_ops.bench.controlled import Ids, KnownAnswers


@contextmanager
def controlled(pair: ModelPair, answers: KnownAnswers, rate: float | None) -> Iterator[None]:
    """Inside, assisted generation of the target drafts rightly with probability `rate`; None: as it does."""
    target = pair.target.module
    if rate is None:
        yield
        return
    make = target._get_candidate_generator

    def wrapped(*arguments: Any, **named: Any) -> Any:
        prompt = tuple(named["input_ids"][0].tolist())
        return _Candidates(make(*arguments, **named), prompt, answers, rate)

    # An attribute of the instance hides the method of the class, and goes with the block.
    target._get_candidate_generator = wrapped
    try:
        yield
    finally:
        del target._get_candidate_generator


class _Candidates:
    """Wraps a candidate generator: the draft's passes are its own, its tokens are replaced."""

    def __init__(self, inner: Any, prompt: Ids, answers: KnownAnswers, rate: float) -> None:
        self._inner, self._prompt, self._answers, self._rate = inner, prompt, answers, rate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_candidates(self, input_ids: Tensor, **named: Any) -> tuple[Tensor, Tensor | None]:
        """Ids [1, T + K] of which the last K are drafted, and the draft's logits."""
        ids, logits = self._inner.get_candidates(input_ids, **named)
        length = input_ids.shape[1]
        said = tuple(input_ids[0, len(self._prompt) :].tolist())
        own = self._answers.draft(self._prompt, said, ids.shape[1] - length, self._rate)
        ids = ids.clone()
        ids[0, length : length + len(own)] = torch.tensor(own, dtype=ids.dtype, device=ids.device)
        return ids, logits
