"""Slots of a preallocated key/value cache: the only file that touches the transformers cache API.

A row owns one slot; its length is kept by the row. Rejected tokens vanish by lowering the length: what lies
behind it is masked, then overwritten. Legend: B rows, T tokens, L attended length, H key/value heads, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

PREFILL_CHUNK = 512
"""Tokens of a prompt that are read in one forward pass."""


@dataclass(slots=True)
class Step:
    """Where one forward pass reads and writes: shared by all layers, set before each pass."""

    rows: slice | Tensor
    """The slots of the batch, a slice where they are neighbours (a view), else an index (a copy)."""
    write_index: Tensor
    """[B*T] positions in the flattened [slots * max_len] cache."""
    length: int
    """How many positions are attended to."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [slots, max_len, H, D] each, so that a write is one index_copy_."""

    is_sliding = False

    def __init__(self, slots: int, max_len: int) -> None:
        super().__init__()
        self.slots, self.max_len = slots, max_len
        self.step = Step(slice(0, 0), torch.empty(0, dtype=torch.long), 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate from the shapes of the first pass: the model's own number of heads and head sizes."""
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, states_BHTD: Tensor) -> Tensor:
        _, heads, _, size = states_BHTD.shape
        shape = (self.slots, self.max_len, heads, size)
        return torch.zeros(shape, dtype=states_BHTD.dtype, device=states_BHTD.device)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [B, H, T, D]; return all that is attended to, [B, H, L, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, buffer: Tensor, states_BHTD: Tensor) -> Tensor:
        flat = buffer.view(self.slots * self.max_len, *buffer.shape[2:])
        flat.index_copy_(0, self.step.write_index, states_BHTD.transpose(1, 2).flatten(0, 1))
        return buffer[self.step.rows, : self.step.length].transpose(1, 2)

    def get_seq_length(self) -> int:
        """Attended length of the pass at hand."""
        return self.step.length

    def get_max_length(self) -> int:
        """Positions a slot holds."""
        return self.max_len

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset) of the pass at hand."""
        return self.step.length, 0


class SlotCache:
    """The cache of one model for `slots` rows of at most `max_len` tokens each.

    Position `max_len` of each slot is a bin: tokens that only pad a ragged batch are written there and never
    read by a real one.
    """

    def __init__(self, model: PreTrainedModel, slots: int, max_len: int) -> None:
        self.slots, self.bin = slots, max_len
        self.layers = [SlotLayer(slots, max_len + 1) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=list(self.layers))
        self.device = model.device

    def forward(
        self,
        model: PreTrainedModel,
        slots: Sequence[int],
        tokens_BT: Tensor,
        positions_BT: Tensor,
        logits_to_keep: int = 0,
    ) -> Tensor:
        """Logits [B, T or logits_to_keep, V] of the tokens at their positions; their keys and values are
        stored.

        A position outside 0..max_len-1 marks padding. Every position up to a token's own is attended to, so
        the slot must hold what came before it.
        """
        wanted = tokens_BT.shape[1]
        tokens_BT, positions_BT = self._padded(tokens_BT, positions_BT)
        inside = (positions_BT >= 0) & (positions_BT < self.bin)
        places_BT = torch.where(inside, positions_BT, self.bin)
        length = int(torch.where(inside, positions_BT, 0).max()) + 1
        self._aim(slots, places_BT, length)
        attended = torch.arange(length, device=self.device) <= places_BT[:, None, :, None]
        output = model(
            input_ids=tokens_BT,
            attention_mask=_mask(attended, model),
            position_ids=positions_BT.clamp(0, self.bin),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        logits: Tensor = output.logits
        return logits[:, -wanted:]

    def _padded(self, tokens_BT: Tensor, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The same batch with padding in front where that makes it cheaper, never dearer than it was."""
        extra = _cheaper_length(*tokens_BT.shape) - tokens_BT.shape[1] if self.device.type == "cpu" else 0
        front = (extra, 0)
        return pad(tokens_BT, front), pad(positions_BT, front, value=-1)

    def _aim(self, slots: Sequence[int], places_BT: Tensor, length: int) -> None:
        index = torch.tensor(slots, device=self.device)
        first, count = slots[0], len(slots)
        neighbours = list(slots) == list(range(first, first + count))
        rows: slice | Tensor = slice(first, first + count) if neighbours else index
        write_index = (index[:, None] * (self.bin + 1) + places_BT).flatten()
        step = Step(rows, write_index, length)
        for layer in self.layers:
            layer.step = step

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot over another."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys[target, :length] = layer.keys[source, :length]
                layer.values[target, :length] = layer.values[source, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot. A NaN left behind would come back: a masked position weighs 0, and 0 * NaN is NaN."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys[slot] = 0
                layer.values[slot] = 0


def _cheaper_length(rows: int, length: int) -> int:
    """T' >= T of a batch [B, T]: on CPUs a matrix times 2, 3, 5, 6 or 7 rows takes longer than times 4 or 8.

    With MKL up to four times as long for an output head; see docs/benchmarks.md.
    """
    while 1 < rows * length < 8 and rows * length % 4:
        length += 1
    return length


def _mask(attended: Tensor, model: PreTrainedModel) -> Tensor:
    """What the model's attention takes as a mask: eager attention adds it to the scores, sdpa reads it."""
    if model.config._attn_implementation != "eager":
        return attended
    hidden = torch.finfo(model.dtype).min
    return torch.zeros(attended.shape, dtype=model.dtype, device=attended.device).masked_fill(
        ~attended, hidden
    )
