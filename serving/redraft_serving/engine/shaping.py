"""Penalties, bias and the minimum length: what changes a row's logits before its law is made.

They apply at every position of a round with the drafted tokens before it counted, to target and draft alike,
so speculation can't drop them. Legend: T positions, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from redraft_serving.engine.rows import Row


def shape_row(
    logits_TV: Tensor, row: Row, drafted: Sequence[int], first: int, ends: frozenset[int]
) -> Tensor:
    """A row's shaped logits at T neighbouring positions, position t seeing the first `first + t` drafted
    tokens.

    `ends` are the ids that would end any answer: these and the row's own stop ids are shut out until
    `min_tokens` are emitted.
    """
    shaped = logits_TV.clone()
    for t in range(len(shaped)):
        _shape(shaped[t], row, drafted[: first + t], ends)
    return shaped


def _shape(logits_V: Tensor, row: Row, drafted: Sequence[int], ends: frozenset[int]) -> None:
    settings = row.request.sampling
    said = row.output_counts + Counter(drafted)
    if settings.repetition_penalty != 1:
        _penalise_repetition(
            logits_V, list(said.keys() | set(row.request.prompt_ids)), settings.repetition_penalty
        )
    if said and (settings.frequency_penalty or settings.presence_penalty):
        ids, counts = (
            list(said),
            torch.tensor(list(said.values()), dtype=logits_V.dtype, device=logits_V.device),
        )
        logits_V[ids] -= settings.frequency_penalty * counts + settings.presence_penalty
    if settings.logit_bias:
        bias = torch.tensor(list(settings.logit_bias.values()), dtype=logits_V.dtype, device=logits_V.device)
        logits_V[list(settings.logit_bias)] += bias
    if len(row.emitted) + len(drafted) < row.request.min_tokens:
        # A generation config may name an end that has no token, and so no logit here.
        barred = [one for one in ends | row.request.stop_token_ids if one < len(logits_V)]
        logits_V[barred] = float("-inf")


def _penalise_repetition(logits_V: Tensor, ids: list[int], penalty: float) -> None:
    """Keskar et al. 2019, section 4.1, as transformers applies it: divide positive logits, multiply negative
    ones.
    """
    present = logits_V[ids]
    logits_V[ids] = torch.where(present > 0, present / penalty, present * penalty)
