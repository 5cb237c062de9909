"""A draft in two halves: the trunk gives hidden states where there is a loss, the head turns them into
logits.

The vocabulary is the widest thing in a small model: logits of every position would cost more than its
layers. So only the hidden states at loss positions reach the head, and a chunk of them at a time. Legend: B
rows, T input tokens, N loss positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from redraft_trainer.losses import Targets

CHUNK = 128
"""Positions per piece of logits: [128, 49152] in float32 is 25 MB, so that a few of them stay near the
caches.
"""


class Trunk(nn.Module):
    """Hidden states [N, H] at the loss positions. A module of its own, so that DistributedDataParallel can
    wrap it.
    """

    def __init__(self, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        self.decoder = getattr(causal_lm, causal_lm.base_model_prefix)

    def forward(self, input_ids_BT: Tensor, loss_index_N: Tensor) -> Tensor:
        """Right padding needs no mask under causal attention."""
        hidden_BTH = self.decoder(input_ids=input_ids_BT, use_cache=False).last_hidden_state
        return cast(Tensor, hidden_BTH.flatten(0, 1)[loss_index_N])


class _Passthrough(nn.Module):
    """Stands where the decoder stood: what comes in as embeddings goes to the head."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPast:
        # Some families hand the input ids, which are None here, over by position.
        return BaseModelOutputWithPast(last_hidden_state=cast(Any, inputs_embeds))


class Head:
    """logits [N, V] of hidden states [N, H], exactly as the model's own forward computes them (scaling,
    soft caps).

    `dtype` other than the model's makes one private copy of the output weight, since autocast would convert
    a frozen weight anew at each call. With `head_ids` [S] the logits are those of a trimmed head, [N, S], and
    only its rows are multiplied. The model itself is left alone: its embedding may be the target's own
    tensor.
    """

    def __init__(
        self, causal_lm: PreTrainedModel, dtype: torch.dtype | None = None, head_ids: Tensor | None = None
    ) -> None:
        self._model = copy.copy(causal_lm)
        modules = dict(causal_lm._modules)
        modules[causal_lm.base_model_prefix] = _Passthrough()
        self._model._modules = modules
        self._dtype = dtype
        self._rows = None if head_ids is None else head_ids.to(causal_lm.device, torch.long)
        linear = modules.get("lm_head")
        if isinstance(linear, nn.Linear):
            wanted = dtype or linear.weight.dtype
            if self._rows is not None or linear.weight.dtype != wanted:
                modules["lm_head"] = _frozen_linear(linear, wanted, self._rows)
            self._rows = None

    def __call__(self, hidden_NH: Tensor) -> Tensor:
        hidden = hidden_NH if self._dtype is None else hidden_NH.to(self._dtype)
        logits_NV = cast(Tensor, self._model(inputs_embeds=hidden[None], use_cache=False).logits[0])
        return logits_NV if self._rows is None else logits_NV[:, self._rows]


def _frozen_linear(linear: nn.Linear, dtype: torch.dtype, rows: Tensor | None) -> nn.Linear:
    def frozen_copy(weight: Tensor) -> nn.Parameter:
        chosen = weight.detach() if rows is None else weight.detach()[rows]
        return nn.Parameter(chosen.to(dtype), requires_grad=False)

    frozen = nn.Linear(1, 1, bias=linear.bias is not None, device="meta")
    frozen.weight = frozen_copy(linear.weight)
    if linear.bias is not None:
        frozen.bias = frozen_copy(linear.bias)
    return frozen


def head_loss(
    hidden_NH: Tensor,
    head: Head,
    loss: Callable[[Tensor, Targets], Tensor],
    targets: Targets,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """(surrogate, mean loss): backward through the surrogate gives the mean loss's gradient.

    The head is frozen, so only the gradient to the hidden states is needed. It is taken chunk by chunk, and
    the logits of a chunk are gone before the next one: peak memory is a few [chunk, V] instead of several
    [N, V]. The surrogate's own value means nothing.
    """
    gradient_NH = torch.empty_like(hidden_NH, dtype=torch.float32)
    total = torch.zeros((), dtype=torch.float32, device=hidden_NH.device)
    for start in range(0, len(targets), chunk):
        piece = slice(start, start + chunk)
        leaf = hidden_NH.detach()[piece].requires_grad_()
        # Summed, not averaged: under 16 bits the gradients of a mean over thousands of positions would
        # underflow.
        value = loss(head(leaf), targets[piece]).sum()
        (gradient,) = torch.autograd.grad(value, leaf)
        gradient_NH[piece] = gradient
        total += value.detach()
    count = max(len(targets), 1)
    return (hidden_NH.float() * (gradient_NH / count)).sum(), total / count
