"""Slots of a preallocated key/value cache, and where one forward pass reads and writes in it.

A row owns one slot; its length is kept by the row. Rejected tokens vanish by lowering the length: what lies
behind it is masked, then overwritten. Legend: B rows, T tokens, L attended length, H key/value heads, D head
dimension, n = B*T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

LENGTH_STEP = 32
"""Attended lengths are rounded up to this. What is masked adds exact zeros, and full vectors add up in one
order: so a row's logits don't depend on how many tokens were drafted behind it."""


@dataclass(slots=True)
class Step:
    """Where one forward pass reads and writes: shared by all layers, made before each pass."""

    rows: slice | Tensor
    """The slots of the batch, a slice where they are neighbours (a view), else an index (a copy)."""
    slots_B: Tensor
    places_BT: Tensor
    """Position of each token; of padding, the bin."""
    positions_BT: Tensor
    """The same for the model: of padding, 0, since the bin may lie past its last position."""
    length: int
    """How many positions are attended to."""
    size: int
    """Positions that a slot holds, the bin included."""
    _index: dict[int, Tensor] = field(default_factory=dict)

    def index(self, heads: int) -> Tensor:
        """[n*H] rows of a flattened [slots * H * size, D] buffer, in the order token, head."""
        found = self._index.get(heads)
        if found is None:
            head = torch.arange(heads, device=self.places_BT.device)
            base = (self.slots_B[:, None] * heads + head)[:, None] * self.size
            found = self._index[heads] = (base + self.places_BT[:, :, None]).flatten()
        return found

    def attended(self) -> Tensor:
        """[B, 1, T, L] True where a token sees a position: all up to its own."""
        positions = torch.arange(self.length, device=self.places_BT.device)
        return positions <= self.places_BT[:, None, :, None]


class SlotCache:
    """Keys and values of one model for `slots` rows of at most `max_len` tokens each.

    Each layer's buffers are [slots, H, max_len + 1, D]: a slot's head is contiguous, which attention reads
    fastest. Position `max_len` of each slot is a bin: tokens that only pad a ragged batch are written there
    and never read by a real one.
    """

    def __init__(self, layers: int, slots: int, max_len: int, device: torch.device) -> None:
        self.slots, self.bin, self.device = slots, max_len, device
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    def step(self, slots: Sequence[int], places_BT: Sequence[Sequence[int]]) -> Step:
        """Aim at these slots and positions; a position outside 0..max_len-1 marks padding."""
        last, size = self.bin, self.bin + 1
        inside = [[place if 0 <= place < last else last for place in row] for row in places_BT]
        length = 1 + max((place for row in inside for place in row if place < last), default=0)
        length = min(-(-length // LENGTH_STEP) * LENGTH_STEP, size)
        index = torch.tensor(slots, device=self.device)
        first, count = slots[0], len(slots)
        neighbours = list(slots) == list(range(first, first + count))
        rows: slice | Tensor = slice(first, first + count) if neighbours else index
        places = torch.tensor(inside, device=self.device)
        return Step(rows, index, places, places.masked_fill(places == last, 0), length, size)

    def write(self, layer: int, step: Step, keys_nHD: Tensor, values_nHD: Tensor) -> tuple[Tensor, Tensor]:
        """Store the pass's keys and values; answer all that is attended to, [B, H, L, D] each."""
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None:
            keys = self.keys[layer] = self._allocate(keys_nHD)
            values = self.values[layer] = self._allocate(values_nHD)
        return _write(keys, step, keys_nHD), _write(values, step, values_nHD)

    def _allocate(self, states_nHD: Tensor) -> Tensor:
        _, heads, size = states_nHD.shape
        shape = (self.slots, heads, self.bin + 1, size)
        return torch.zeros(shape, dtype=states_nHD.dtype, device=states_nHD.device)

    def _buffers(self) -> list[Tensor]:
        return [buffer for buffer in (*self.keys, *self.values) if buffer is not None]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot over another."""
        for buffer in self._buffers():
            buffer[target, :, :length] = buffer[source, :, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot. A NaN left behind would come back: a masked position weighs 0, and 0 * NaN is NaN."""
        for buffer in self._buffers():
            buffer[slot] = 0

    def read_slot(self, slot: int, start: int, stop: int) -> Tensor:
        """A copy of what a slot holds at positions start..stop-1, as one flat tensor."""
        return torch.cat([buffer[slot, :, start:stop].flatten() for buffer in self._buffers()])

    def write_slot(self, slot: int, start: int, block: Tensor) -> None:
        """Put back what `read_slot` gave, from position `start` on."""
        buffers = self._buffers()
        length = block.numel() // sum(buffer.shape[1] * buffer.shape[3] for buffer in buffers)
        sizes = [buffer.shape[1] * length * buffer.shape[3] for buffer in buffers]
        for buffer, part in zip(buffers, torch.split(block, sizes), strict=True):
            buffer[slot, :, start : start + length] = part.view(buffer.shape[1], length, buffer.shape[3])

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in all layers; 0 before the first pass."""
        return sum(buffer[0].nbytes for buffer in self._buffers())


def _write(buffer: Tensor, step: Step, states_nHD: Tensor) -> Tensor:
    heads, size = states_nHD.shape[1:]
    buffer.view(-1, size).index_copy_(0, step.index(heads), states_nHD.reshape(-1, size))
    return buffer[step.rows, :, : step.length]
