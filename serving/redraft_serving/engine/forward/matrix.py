"""Matrix products with weights laid out once for the machine at hand.

On a CPU oneDNN packs them: products of 1 to 8 rows then cost about the bytes of the weights, where the
library's plain products take up to seven times as long (docs/benchmarks.md). Elsewhere the weights stay as
they are. Legend: n rows, I inputs, O outputs.
"""

from __future__ import annotations

from typing import Protocol

import torch
from redraft_models.dtypes import can_pack
from torch import Tensor
from torch.nn.functional import linear, silu


class Matrix(Protocol):
    """One weight [O, I], ready to be multiplied."""

    def __call__(self, x_nI: Tensor) -> Tensor:
        """x W^T + b, [n, O]."""

    def plus(self, x_nI: Tensor, other_nO: Tensor) -> Tensor:
        """other + (x W^T + b); `other` is used up. It may be of a longer dtype, and so the answer."""


def matrix(weight_OI: Tensor, bias_O: Tensor | None = None) -> Matrix:
    """The fastest form of a weight on its device. It keeps a copy where it packs, else the tensor itself."""
    weight = weight_OI.detach()
    bias = None if bias_O is None else bias_O.detach()
    if can_pack(weight.device, weight.dtype):
        return PackedMatrix(weight, bias)
    return PlainMatrix(weight, bias)


class PlainMatrix:
    """The library's own product."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight, self.bias = weight_OI, bias_O
        self.nbytes = 0
        """Bytes held beside the model's own tensors."""

    def __call__(self, x_nI: Tensor) -> Tensor:
        """x W^T + b."""
        return linear(x_nI, self.weight, self.bias)

    def plus(self, x_nI: Tensor, other_nO: Tensor) -> Tensor:
        """other + (x W^T + b)."""
        return other_nO.add_(linear(x_nI, self.weight, self.bias))


_linear = torch.ops.mkldnn._linear_pointwise.default
_linear_binary = torch.ops.mkldnn._linear_pointwise.binary


class PackedMatrix:
    """A product over a weight in oneDNN's own layout."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), None)
        self.bias = bias_O
        self.dtype = weight_OI.dtype
        self.nbytes = weight_OI.nbytes

    def __call__(self, x_nI: Tensor) -> Tensor:
        """x W^T + b."""
        product: Tensor = _linear(x_nI, self.packed, self.bias, "none", [], "")
        return product

    def plus(self, x_nI: Tensor, other_nO: Tensor) -> Tensor:
        """other + (x W^T + b): in one kernel where the dtypes agree."""
        if other_nO.dtype is not self.dtype:
            return other_nO.add_(self(x_nI))
        total: Tensor = _linear_binary(x_nI, other_nO, self.packed, self.bias, "add")
        return total


def gated(gate_up_nO: Tensor) -> Tensor:
    """silu(gate) * up of a product that holds both, gate first."""
    gate, up = gate_up_nO.chunk(2, dim=-1)
    return silu(gate).mul_(up)
