"""How tokens are guessed. A proposer is the seam: propose, commit, and a swap in two steps.

Legend: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from redraft_models.adapter import Adapter, PreparedWeights, ServingWeights
from redraft_models.laws import LawSettings
from torch import Tensor
from transformers import PreTrainedModel

from redraft_serving.engine.interface import EngineError
from redraft_serving.engine.rows import Row

BASE = "base"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens of a round."""

    tokens: Tensor
    """[B, K]; what stands behind a row's limit is padding."""
    laws: Tensor | None
    """q [B, K, V], the law that each token was drawn from; None where every row is greedy (one-hots)."""
    limits: list[int]
    """[B] how many tokens each row really proposes."""


@dataclass(slots=True)
class ServingDraft:
    """One weight set of the draft, as it serves."""

    module: PreTrainedModel
    weights: ServingWeights
    version: int | str = BASE
    adapter: Adapter | None = None
    checksum: str = ""
    """Read back from the weights after they were written."""


@dataclass(frozen=True, slots=True)
class PreparedSwap:
    """A swap whose costly part is done: `install` only copies."""

    domain: str
    version: int | str
    adapter: Adapter | None
    draft: ServingDraft
    weights: PreparedWeights | None


class Proposer(Protocol):
    """Guesses tokens for rows."""

    def admit(self, row: Row) -> None:
        """Prepare for a row that has just got its slot."""

    def propose(
        self, rows: Sequence[Row], limits: list[int], uniforms: Tensor, settings: LawSettings
    ) -> Proposal:
        """Guess up to `limits[b]` tokens per row from uniform draws [B, K]."""

    def commit(self, row: Row, drafted: int, accepted: int) -> None:
        """A row kept `accepted` of `drafted` tokens; called after the row's tokens grew."""

    def move(self, row: Row, source: int) -> None:
        """The row's slot changed from `source`."""

    def prepare(self, domain: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """Compute a domain's weights, on any thread; None is the base draft. Raises AdapterRejected."""

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Serve prepared weights from the next round on; called between two rounds."""

    def serving(self, domain: str) -> ServingDraft | None:
        """The weights that serve a domain now, if any do."""


class NoProposer:
    """Proposes nothing: plain decoding, where no draft is configured."""

    def admit(self, row: Row) -> None:
        """Nothing to prepare."""

    def propose(
        self, rows: Sequence[Row], limits: list[int], uniforms: Tensor, settings: LawSettings
    ) -> Proposal:
        """An empty proposal for each row."""
        tokens = torch.zeros(len(rows), 0, dtype=torch.long, device=settings.temperature.device)
        return Proposal(tokens, None, [0] * len(rows))

    def commit(self, row: Row, drafted: int, accepted: int) -> None:
        """Nothing to keep."""

    def move(self, row: Row, source: int) -> None:
        """Nothing to move."""

    def prepare(self, domain: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """Refused: there is no draft to change."""
        raise EngineError(f"no draft is loaded, so version {version} of domain {domain!r} can't be served")

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Never reached: nothing is ever prepared."""
        raise EngineError(f"no draft is loaded for domain {swap.domain!r}")

    def serving(self, domain: str) -> None:
        """No draft serves any domain."""
