"""The draft's serving weights: base + adapter, written in place, read back.

The base is kept apart and never touched, so no number of swaps can erode it (unmerging would). The parameter
tensors stay the same objects with the same shapes: compiled code and graphs that hold them stay valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft_models.errors import AdapterRejected
from redraft_models.lora import Adapter, adaptable_linears, deltas


@dataclass(frozen=True)
class PreparedWeights:
    """Weights ready to be installed: whatever could be computed ahead of the swap's pause."""

    weights: Mapping[str, Tensor]
    """`<path>.weight` -> what the parameter will hold, in its dtype and on its device."""
    checksum: str
    """What `ServingWeights.checksum` answers once these are installed."""


class ServingWeights:
    """Pristine copies of a draft's linear weights, and the way from an adapter into the serving ones.

    A swap is `prepare` (any thread, the costly part), `install` (between two rounds, copies only) and
    `checksum` (read back); `apply` is the three in a row.
    """

    def __init__(self, module: Any) -> None:
        """Copy the linear weights of `module`, which must be the base draft with no adapter merged."""
        self._live = {f"{name}.weight": linear.weight for name, linear in adaptable_linears(module).items()}
        self._base = {name: weight.detach().clone() for name, weight in self._live.items()}
        self.base_checksum = _checksum(self._base)

    def prepare(self, adapter: Adapter | None) -> PreparedWeights:
        """Compute base + BA in float32 and cast it once; None is the base itself.

        Raises AdapterRejected where the adapter names a layer that this draft lacks, or of another shape, or
        where the sum leaves the range of the serving dtype.
        """
        if adapter is None:
            return PreparedWeights(self._base, self.base_checksum)
        added = deltas(adapter)
        self._check(added)
        weights = {name: _merged(base, added.get(name)) for name, base in self._base.items()}
        broken = next((name for name, weight in weights.items() if not bool(weight.isfinite().all())), None)
        if broken is not None:
            raise AdapterRejected(f"base + adapter is not finite in {broken} as {self._base[broken].dtype}")
        return PreparedWeights(weights, _checksum(weights))

    @torch.no_grad()
    def install(self, prepared: PreparedWeights) -> None:
        """Write prepared weights into the serving parameters, in place. Call between two rounds."""
        for name, weight in prepared.weights.items():
            self._live[name].copy_(weight)

    def checksum(self) -> str:
        """sha256 over the serving weights as they are now: names and bytes, in the order of names."""
        return _checksum(self._live)

    @staticmethod
    def checksum_of(module: Any) -> str:
        """The same of another module that serves prepared weights."""
        linears = adaptable_linears(module)
        return _checksum({f"{name}.weight": linear.weight for name, linear in linears.items()})

    def apply(self, adapter: Adapter | None) -> str:
        """Prepare, install, and answer the checksum read back from the parameters."""
        self.install(self.prepare(adapter))
        return self.checksum()

    def _check(self, added: Mapping[str, Tensor]) -> None:
        for name, delta in added.items():
            if name not in self._base:
                raise AdapterRejected(f"the adapter changes {name}, which this draft does not have")
            if delta.shape != self._base[name].shape:
                shapes = f"{list(delta.shape)} in the adapter and {list(self._base[name].shape)} in the draft"
                raise AdapterRejected(f"the shape of {name} is {shapes}")


def _merged(base: Tensor, delta: Tensor | None) -> Tensor:
    """base + delta, summed in float32. A weight that the adapter leaves alone is the base's own tensor."""
    return base if delta is None else (base.float() + delta.to(base.device)).to(base.dtype)


def _checksum(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        raw = weights[name].detach().cpu().contiguous().view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()
