"""The proposer that draws tokens one by one from a smaller causal language model.

It keeps one weight set per domain that has an adapter, and the pristine base draft for all others. They share
one cache: their shapes are the same, and a cache left by another version costs acceptance, never correctness.
Legend: B rows, G rows of one weight set, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from redraft_models.adapter import Adapter, ServingWeights
from redraft_models.laws import LawSettings, process, real_rows
from torch import Tensor
from transformers import PreTrainedModel

from redraft_serving.engine.cache import PREFILL_CHUNK, SlotCache
from redraft_serving.engine.proposer import PreparedSwap, Proposal, ServingDraft
from redraft_serving.engine.rows import Row
from redraft_serving.engine.sampling import draw
from redraft_serving.engine.shaping import shape_row


class DraftModelProposer:
    """Draws tokens one by one from a smaller causal language model."""

    def __init__(
        self, module: PreTrainedModel, slots: int, max_len: int, vocab_size: int, ends: frozenset[int]
    ) -> None:
        weights = ServingWeights(module)
        self.base = ServingDraft(module, weights, checksum=weights.base_checksum)
        self.active: dict[str, ServingDraft] = {}
        self._copies: dict[str, ServingDraft] = {}
        window = getattr(module.config, "max_position_embeddings", max_len)
        self.window = min(window, max_len)
        self.vocab_size, self.ends = vocab_size, ends
        self.cache = SlotCache(module, slots, max_len)

    def serving(self, domain: str) -> ServingDraft:
        """The weights that serve a domain now: its own version, else the base draft."""
        return self.active.get(domain, self.base)

    def prepare(self, domain: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """Compute base + BA for a domain, which gets a weight set of its own with its first adapter."""
        if adapter is None:
            return PreparedSwap(domain, version, None, self.base, None)
        draft = self._copies.get(domain)
        if draft is None:
            draft = self._copies[domain] = self._copy()
        return PreparedSwap(domain, version, adapter, draft, draft.weights.prepare(adapter))

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Copy the prepared weights in, read their checksum back, and let them serve the domain."""
        if swap.weights is None:
            self.active.pop(swap.domain, None)
            return self.base
        draft = swap.draft
        draft.weights.install(swap.weights)
        draft.adapter, draft.version = swap.adapter, swap.version
        draft.checksum = draft.weights.checksum()
        self.active[swap.domain] = draft
        return draft

    def _copy(self) -> ServingDraft:
        """A second set of the layers; embedding and head stay the base draft's own tensors."""
        base = self.base.module
        shared = [base.get_input_embeddings(), base.get_output_embeddings()]
        memo = {id(p): p for module in shared if module is not None for p in module.parameters()}
        module = copy.deepcopy(base, memo)
        return ServingDraft(module, ServingWeights(module))

    def admit(self, row: Row) -> None:
        """Read the prompt, but for its last two tokens: every round's first step feeds those."""
        row.draft_length = 0
        if self._fits(row, 1):
            self._catch_up(row)

    def _fits(self, row: Row, k: int) -> bool:
        if row.plain_reason is None and len(row.tokens) + k > self.window:
            row.plain_reason = "window"
        return row.plain_reason is None

    def _catch_up(self, row: Row) -> None:
        module = self.serving(row.request.domain).module
        end = len(row.tokens) - 2
        for start in range(row.draft_length, end, PREFILL_CHUNK):
            chunk = row.tokens[start : min(start + PREFILL_CHUNK, end)]
            tokens = torch.tensor([chunk], device=self.cache.device)
            positions = torch.arange(start, start + len(chunk), device=self.cache.device)[None]
            self.cache.forward(module, [row.slot], tokens, positions, logits_to_keep=1)
        row.draft_length = max(row.draft_length, end)

    def propose(
        self, rows: Sequence[Row], limits: list[int], uniforms: Tensor, settings: LawSettings
    ) -> Proposal:
        """Guess tokens for all rows, one weight set after the other."""
        limits = [k if k and self._fits(row, k) else 0 for row, k in zip(rows, limits, strict=True)]
        depth = max(limits, default=0)
        device = self.cache.device
        tokens = torch.zeros(len(rows), depth, dtype=torch.long, device=device)
        laws = None
        if depth and not settings.all_greedy:
            laws = torch.zeros(len(rows), depth, self.vocab_size, device=device)
        for draft, members in self._groups(rows, limits):
            group = _Group(draft.module, [rows[b] for b in members], members, depth)
            self._draft(group, tokens, laws, uniforms, settings, limits)
        return Proposal(tokens, laws, limits)

    def _groups(self, rows: Sequence[Row], limits: list[int]) -> list[tuple[ServingDraft, list[int]]]:
        groups: dict[int, tuple[ServingDraft, list[int]]] = {}
        for b, row in enumerate(rows):
            if limits[b]:
                draft = self.serving(row.request.domain)
                groups.setdefault(id(draft), (draft, []))[1].append(b)
        return list(groups.values())

    def _draft(
        self,
        group: _Group,
        tokens_BK: Tensor,
        laws_BKV: Tensor | None,
        uniforms_BK: Tensor,
        settings: LawSettings,
        limits: list[int],
    ) -> None:
        for row in group.rows:
            self._catch_up(row)
        finite = []
        own = settings[group.members]
        fed, positions = group.first(self.cache.device)
        for j in range(group.depth):
            logits = self.cache.forward(group.module, group.slots, fed, positions, logits_to_keep=1)[:, -1]
            logits = real_rows(logits, self.vocab_size).float()
            finite.append(logits.sum(dim=-1).isfinite())
            self._shape(logits, group, tokens_BK, j)
            token, law = _draw(logits, own, uniforms_BK[group.members, j], laws_BKV is not None)
            tokens_BK[group.members, j] = token
            if laws_BKV is not None and law is not None:
                laws_BKV[group.members, j] = law
            fed, positions = token[:, None], positions[:, -1:] + 1
        self._drop_nonfinite(group, torch.stack(finite, dim=1), limits)

    def _shape(self, logits_GV: Tensor, group: _Group, tokens_BK: Tensor, j: int) -> None:
        for g, row in enumerate(group.rows):
            if row.shaped:
                drafted = tokens_BK[group.members[g], :j].tolist()
                logits_GV[g] = shape_row(logits_GV[g : g + 1], row, drafted, j, self.ends)[0]

    def _drop_nonfinite(self, group: _Group, finite_GK: Tensor, limits: list[int]) -> None:
        """Keep what was proposed before the first bad step; from then on the row decodes plainly."""
        for g, good in enumerate(finite_GK.tolist()):
            if not all(good):
                limits[group.members[g]] = min(limits[group.members[g]], good.index(False))
                group.rows[g].plain_reason = "nonfinite"
                self.cache.clear(group.rows[g].slot)

    def commit(self, row: Row, drafted: int, accepted: int) -> None:
        """The last drafted token was never fed, so after a full acceptance the cache is one token shorter."""
        if drafted:
            row.draft_length = len(row.tokens) - (2 if accepted == drafted else 1)

    def move(self, row: Row, source: int) -> None:
        """Copy what the cache holds of a row to its new slot."""
        self.cache.move(source, row.slot, row.draft_length)


@dataclass(slots=True)
class _Group:
    """The rows of a round that one weight set drafts for, with their places in the batch."""

    module: PreTrainedModel
    rows: list[Row]
    members: list[int]
    depth: int

    @property
    def slots(self) -> list[int]:
        return [row.slot for row in self.rows]

    def first(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens and positions of the first step [G, 2]: the last two of each row.

        After a full acceptance the cache lacks both, otherwise the first of them is written once more: no
        ragged step. A prompt of one token has no second: its place is padding (position -1).
        """
        tokens = [[row.tokens[-2] if len(row.tokens) > 1 else 0, row.tokens[-1]] for row in self.rows]
        ends = torch.tensor([len(row.tokens) - 1 for row in self.rows], device=device)
        return torch.tensor(tokens, device=device), torch.stack((ends - 1, ends), dim=1)


def _draw(
    logits_GV: Tensor, settings: LawSettings, uniform_G: Tensor, sampled: bool
) -> tuple[Tensor, Tensor | None]:
    if not sampled:
        return logits_GV.argmax(dim=-1), None
    law = process(logits_GV, settings)
    return draw(law, uniform_G), law
