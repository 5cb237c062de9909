"""Any causal language model of transformers over slots: the only file that touches its cache API.

The modules are the library's own; on a CPU their linear products are packed. Legend: B rows, T tokens,
L attended length, H key/value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from redraft_models.dtypes import can_pack
from torch import Tensor
from torch.nn import Linear
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from redraft_serving.engine.cache import SlotCache, Step
from redraft_serving.engine.forward.matrix import PackedMatrix


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a slot cache, as the library's attention sees it during one pass."""

    is_sliding = False

    def __init__(self, cache: SlotCache, layer: int, step: Step) -> None:
        super().__init__()
        self.cache, self.layer, self.step = cache, layer, step
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the slot cache allocates."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [B, H, T, D]; return all that is attended to, [B, H, L, D]."""
        keys, values = (states.transpose(1, 2).flatten(0, 1) for states in (key_states, value_states))
        return self.cache.write(self.layer, self.step, keys, values)

    def get_seq_length(self) -> int:
        """Attended length of the pass at hand."""
        return self.step.length

    def get_max_length(self) -> int:
        """Positions a slot holds."""
        return self.step.size

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset) of the pass at hand."""
        return self.step.length, 0


class LibraryDecoder:
    """The library's own forward pass."""

    def __init__(self, module: PreTrainedModel, head_ids: Tensor | None = None) -> None:
        self.module, self.head_ids = module, head_ids
        self.layers: int = module.config.num_hidden_layers
        self.device = module.device
        self._packed: dict[str, PackedMatrix] = {}
        self.least_rows = 4 if can_pack(module.device, module.dtype) else 1
        self.refresh()

    def refresh(self) -> None:
        """Pack the weights as they are now."""
        if not can_pack(self.device, self.module.dtype):
            return
        for name, linear in self.module.named_modules():
            if type(linear) is not Linear:
                continue
            shown = getattr(linear.__dict__.get("forward"), "state", None)
            if shown != _state(linear):
                # An instance's own attribute: the module's weights, names and class stay what they are.
                self._packed[name] = PackedMatrix(linear.weight.detach(), linear.bias)
                linear.forward = _forward(self._packed[name], _state(linear))  # type: ignore[method-assign]

    def logits(self, cache: SlotCache, step: Step, tokens_BT: Tensor, keep: int) -> Tensor:
        """Logits [B, keep, V]; with head ids, of these alone."""
        output = self.module(
            input_ids=tokens_BT,
            attention_mask=_mask(step.attended(), self.module),
            position_ids=step.positions_BT,
            cache=Cache(layers=[SlotLayer(cache, layer, step) for layer in range(self.layers)]),
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits if self.head_ids is None else logits[..., self.head_ids]

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights."""
        return sum(packed.nbytes for packed in self._packed.values())


def _state(linear: Linear) -> tuple[int, int]:
    """Tells a weight that was packed from one that is another's copy, or has changed since."""
    return linear.weight.data_ptr(), linear.weight._version


def _forward(packed: PackedMatrix, state: tuple[int, int]) -> Any:
    def forward(x: Tensor) -> Tensor:
        return packed(x)

    forward.state = state  # type: ignore[attr-defined]
    return forward


def _mask(attended: Tensor, model: PreTrainedModel) -> Tensor:
    """What the model's attention takes as a mask: eager attention adds it to the scores, sdpa reads it."""
    if model.config._attn_implementation != "eager":
        return attended
    hidden = torch.finfo(model.dtype).min
    return torch.zeros(attended.shape, dtype=model.dtype, device=attended.device).masked_fill(
        ~attended, hidden
    )
