"""Long-lived copies of tensors of a few shapes, each in its place of a large piece of memory.

Held one by one among the short-lived tensors of rounds, they would tear the allocator's memory into gaps that
no other tensor fits: a process then holds far more than what is in use.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

SLAB_BYTES = 32 * 1024 * 1024


class TensorPool:
    """Places are used again, and never given back."""

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Tensor]] = {}

    def hold(self, data: Tensor) -> Tensor:
        """A copy of `data` in a place of the pool."""
        places = self._free.setdefault(_kind(data), [])
        if not places:
            count = max(1, SLAB_BYTES // max(1, data.nbytes))
            slab = torch.empty((count, *data.shape), dtype=data.dtype, device=data.device)
            places.extend(slab.unbind())
        return places.pop().copy_(data)

    def free(self, held: Tensor) -> None:
        """Give a place up, for the next tensor of its shape."""
        self._free[_kind(held)].append(held)


def _kind(data: Tensor) -> Hashable:
    return data.shape, data.dtype, data.device
