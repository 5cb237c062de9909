"""How tokens are guessed. A proposer is the seam: propose, commit, and a swap in two steps.

Legend: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from redraft_models.adapter import Adapter
from redraft_models.laws import LawSettings
from torch import Tensor

from redraft_serving.engine.interface import EngineError
from redraft_serving.engine.rows import Row
from redraft_serving.engine.weight_sets import PreparedSwap, ServingDraft

KeepDrafting = Callable[[Sequence[int], Sequence[Sequence[float]]], bool]
"""Asked after each drafted token with the rows that draft, by their places in the batch, and the confidences
of what each has drafted: whether another token is worth its time. All tokens drawn so far are kept, so the
answer may depend on them without changing the law."""


@dataclass(slots=True)
class Proposal:
    """Drafted tokens of a round."""

    tokens: Tensor
    """[B, K]; what stands behind a row's limit is padding."""
    laws: Tensor | None
    """q [B, K, V], the law that each token was drawn from; None where every row is matched, not sampled."""
    limits: list[int]
    """[B] how many tokens each row proposes."""
    sound: Tensor | None = None
    """[B] how many of them came before the draft's first non-finite logits; None: all."""
    confidences: dict[int, list[float]] = field(default_factory=dict)
    """By place in the batch: of each drafted token, the largest probability of its law."""
    drafting: list[int] = field(default_factory=list)
    """Places of the rows that the draft model drafted for."""
    steps: int = 0
    """Passes of the draft model, one weight set after the other."""
    catch_up_tokens: int = 0
    """Tokens that the draft read before its first step."""


class Proposer(Protocol):
    """Guesses tokens for rows from weights of its own."""

    def admit(self, row: Row) -> None:
        """Prepare for a row that has just got its slot."""

    def keep(self, row: Row) -> None:
        """Remember what was read of a row, for others that begin alike."""

    def catch_up(self, row: Row, most: int) -> int:
        """Read up to `most` tokens of a row that are not read yet; answers how many it read."""

    def offer(self, row: Row, most: int, gap: int) -> int:
        """Most tokens that may be asked of it for this row now: 0 past its window, or where more than `gap`
        tokens are not read yet.
        """

    def propose(
        self,
        rows: Sequence[Row],
        limits: list[int],
        uniforms: Tensor,
        settings: LawSettings,
        keep: KeepDrafting | None = None,
    ) -> Proposal:
        """Guess up to `limits[b]` tokens per row from uniform draws [B, K]."""

    def commit(self, row: Row, drafted: int, accepted: int) -> None:
        """A row kept `accepted` of `drafted` tokens; called after the row's tokens grew."""

    def move(self, row: Row, source: int) -> None:
        """The row's slot changed from `source`."""

    def unsound(self, row: Row) -> None:
        """The proposal for this row came from logits that are not finite."""

    def prepare(self, lane: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """Compute a lane's weights, on any thread; None is the base draft. Raises AdapterRejected."""

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Serve prepared weights from the next round on; called between two rounds."""

    def serving(self, lane: str) -> ServingDraft | None:
        """The weights that serve a lane now, if any do."""

    def lane_of(self, row: Row) -> str:
        """The lane that serves a row now: its own, or its domain's champion."""


class NoProposer:
    """Proposes nothing: where no draft is configured."""

    def admit(self, row: Row) -> None:
        """Nothing to prepare."""

    def keep(self, row: Row) -> None:
        """Nothing to remember."""

    def catch_up(self, row: Row, most: int) -> int:
        """Nothing to read."""
        return 0

    def offer(self, row: Row, most: int, gap: int) -> int:
        """Nothing to offer."""
        return 0

    def propose(
        self,
        rows: Sequence[Row],
        limits: list[int],
        uniforms: Tensor,
        settings: LawSettings,
        keep: KeepDrafting | None = None,
    ) -> Proposal:
        """An empty proposal for each row."""
        tokens = torch.zeros(len(rows), 0, dtype=torch.long, device=settings.temperature.device)
        return Proposal(tokens, None, [0] * len(rows))

    def commit(self, row: Row, drafted: int, accepted: int) -> None:
        """Nothing to keep."""

    def move(self, row: Row, source: int) -> None:
        """Nothing to move."""

    def unsound(self, row: Row) -> None:
        """Never reached: nothing is proposed."""

    def prepare(self, lane: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """Refused: there is no draft to change."""
        raise EngineError(f"no draft is loaded, so version {version} of domain {lane!r} can't be served")

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Never reached: nothing is ever prepared."""
        raise EngineError(f"no draft is loaded for domain {swap.lane!r}")

    def serving(self, lane: str) -> None:
        """No draft serves any lane."""

    def lane_of(self, row: Row) -> str:
        """The domain's own."""
        return row.request.domain
