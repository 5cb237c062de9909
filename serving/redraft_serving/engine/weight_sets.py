"""The weights of the draft: the pristine base, and one set for each lane (a domain's arm) with an adapter.

A swap makes a new set on its own thread: base + BA, packed, checked against the library's modules and read
back. Between two rounds only a reference changes, so no stream waits for a swap.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from redraft_models.adapter import Adapter, ServingWeights
from torch import Tensor
from torch.nn import Parameter

from redraft_serving.engine.forward.choose import choose_decoder
from redraft_serving.engine.forward.decoder import Decoder
from redraft_serving.engine.interface import domain_and_arm

BASE = "base"


@dataclass(frozen=True, slots=True)
class ServingDraft:
    """One weight set of the draft, as it serves."""

    module: Any
    decoder: Decoder
    version: int | str = BASE
    adapter: Adapter | None = None
    checksum: str = ""
    """Read back from the weights after they were written."""
    head_ids: Tensor | None = None
    """Token ids that the head scores; None: all."""


@dataclass(frozen=True, slots=True)
class PreparedSwap:
    """A swap that is ready: `install` only changes a reference. Without a draft the lane goes away."""

    lane: str
    version: int | str
    draft: ServingDraft | None


class WeightSets:
    """Which weights serve which lane."""

    def __init__(self, module: Any, head_ids: Tensor | None = None, shared: Decoder | None = None) -> None:
        self._weights, self._shared = ServingWeights(module), shared
        head_ids = _on(module, head_ids)
        self.base = ServingDraft(
            module,
            choose_decoder(module, head_ids, shared),
            checksum=self._weights.base_checksum,
            head_ids=head_ids,
        )
        self._active: dict[str, ServingDraft] = {}

    def serving(self, lane: str) -> ServingDraft:
        """The weights that serve a lane now: its own, else its domain's champion, else the base draft."""
        own = self._active.get(lane)
        return own if own is not None else self._active.get(domain_and_arm(lane)[0], self.base)

    def has(self, lane: str) -> bool:
        """True where a lane has weights of its own, be they the base's."""
        return lane in self._active

    def all(self) -> list[ServingDraft]:
        """Every set in memory, the base first."""
        return [self.base, *(draft for draft in list(self._active.values()) if draft is not self.base)]

    @torch.no_grad()
    def prepare(self, lane: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """A new set for a lane, on any thread; the base itself where the adapter is None."""
        if adapter is None:
            return PreparedSwap(lane, version, self.base)
        prepared = self._weights.prepare(adapter)
        module = _with_weights(self.base.module, prepared.weights)
        head_ids = _on(module, getattr(adapter, "head_ids", None))
        draft = ServingDraft(
            module,
            choose_decoder(module, head_ids, self._shared),
            version,
            adapter,
            ServingWeights.checksum_of(module),
            head_ids,
        )
        return PreparedSwap(lane, version, draft)

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Let prepared weights serve their lane; answers what serves it now."""
        if swap.draft is None:
            self._active.pop(swap.lane, None)
        else:
            self._active[swap.lane] = swap.draft
        return self.serving(swap.lane)


def _with_weights(base: Any, weights: Mapping[str, Tensor]) -> Any:
    """A second module over these linear weights; all others are the base's own tensors."""
    memo = {id(parameter): parameter for parameter in base.parameters()}
    module = copy.deepcopy(base, memo)
    for name, weight in weights.items():
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, Parameter(weight, requires_grad=False))
    return module


def _on(module: Any, head_ids: Tensor | None) -> Tensor | None:
    return None if head_ids is None else torch.as_tensor(head_ids, dtype=torch.long).to(module.device)
