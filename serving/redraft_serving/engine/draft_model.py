"""The proposer that draws tokens one by one from a smaller causal language model.

All weight sets share one cache: their shapes are the same, and a cache left by another version costs
acceptance, never correctness. Legend: B rows, G rows of one weight set, K drafted tokens, V vocabulary, N ids
that a head scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from redraft_models.adapter import Adapter
from redraft_models.laws import LawSettings, process, real_rows
from torch import Tensor
from transformers import PreTrainedModel

from redraft_serving.engine.cache import SlotCache
from redraft_serving.engine.forward.decoder import Decoder, read
from redraft_serving.engine.prefix import PrefixCache
from redraft_serving.engine.proposer import KeepDrafting, Proposal
from redraft_serving.engine.rows import Row
from redraft_serving.engine.sampling import draw, pick
from redraft_serving.engine.shaping import shape_row
from redraft_serving.engine.weight_sets import PreparedSwap, ServingDraft, WeightSets


class DraftModelProposer:
    """Draws tokens one by one from a smaller causal language model."""

    def __init__(
        self,
        module: PreTrainedModel,
        slots: int,
        max_len: int,
        vocab_size: int,
        ends: frozenset[int],
        *,
        head_ids: Tensor | None = None,
        shared: Decoder | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        """`shared`: the target's decoder, whose output head serves a draft that has the same."""
        self.weights = WeightSets(module, head_ids, shared)
        window = getattr(module.config, "max_position_embeddings", max_len)
        self.window = min(window, max_len)
        self.vocab_size, self.ends = vocab_size, ends
        # Past its window a model has no positions: a row that waits for deeper ones is fed into the bin.
        self.cache = SlotCache(self.weights.base.decoder.layers, slots, self.window, module.device)
        self.prefixes = prefixes or PrefixCache(0)
        self._swaps: Counter[str] = Counter()
        """By lane, since the start."""

    def serving(self, lane: str) -> ServingDraft:
        """The weights that serve a lane now: its own version, else its domain's champion."""
        return self.weights.serving(lane)

    def lane_of(self, row: Row) -> str:
        """The lane that serves a row now: its own, or its domain's champion once that is retired."""
        return row.lane if self.weights.has(row.lane) else row.request.domain

    def prepare(self, lane: str, adapter: Adapter | None, version: int | str) -> PreparedSwap:
        """Compute a lane's weights, on any thread; None is the base draft. Raises AdapterRejected."""
        return self.weights.prepare(lane, adapter, version)

    def install(self, swap: PreparedSwap) -> ServingDraft:
        """Serve prepared weights from the next round on; called between two rounds."""
        before = {draft.checksum for draft in self.weights.all()}
        self._swaps[swap.lane] += 1
        serving = self.weights.install(swap)
        for checksum in before - {draft.checksum for draft in self.weights.all()}:
            self.prefixes.forget(("draft", checksum))
        return serving

    def admit(self, row: Row) -> None:
        """Take over what is known of the prompt's beginning."""
        row.draft_swaps = self._changes(row)
        row.draft_length = self.prefixes.restore(self.cache, row.slot, row.tokens[:-1], self._key(row))

    def keep(self, row: Row) -> None:
        """Remember what is read of a row for later ones, unless a swap came between, be it there and back."""
        if row.plain_reason is None and row.draft_swaps == self._changes(row):
            self.prefixes.keep(self.cache, row.slot, row.tokens[: row.draft_length], self._key(row))

    def _changes(self, row: Row) -> int:
        """Grows with each swap that may have given the row other weights."""
        return sum(self._swaps[one] for one in {row.lane, row.request.domain})

    def _key(self, row: Row) -> tuple[str, str, str]:
        """Several domains may serve the same weights, and still share no beginnings: see `prefill`."""
        return "draft", self.serving(row.lane).checksum, row.request.domain

    def catch_up(self, row: Row, most: int) -> int:
        """Read up to `most` tokens; never the last two, which every round's first step feeds."""
        end = min(len(row.tokens) - 2, row.draft_length + most)
        if row.plain_reason is not None or len(row.tokens) >= self.window or end <= row.draft_length:
            return 0
        chunk = torch.tensor([row.tokens[row.draft_length : end]], device=self.cache.device)
        decoder = self.serving(row.lane).decoder
        logits = read(decoder, self.cache, [row.slot], chunk, [row.draft_length], keep=1)
        row.draft_length = end
        if not bool(logits.sum().isfinite()):
            self.unsound(row)
        return chunk.shape[1]

    def offer(self, row: Row, most: int, gap: int) -> int:
        """Most tokens that may be asked of it for this row now."""
        if row.plain_reason is None and most > 0 and len(row.tokens) + 1 > self.window:
            row.plain_reason = "window"
        if row.plain_reason is not None or len(row.tokens) - 2 - row.draft_length > gap:
            return 0
        return max(0, min(most, self.window - len(row.tokens)))

    def propose(
        self,
        rows: Sequence[Row],
        limits: list[int],
        uniforms: Tensor,
        settings: LawSettings,
        keep: KeepDrafting | None = None,
    ) -> Proposal:
        """Guess tokens for all rows, one weight set after the other."""
        depth, device = max(limits, default=0), self.cache.device
        tokens = torch.zeros(len(rows), depth, dtype=torch.long, device=device)
        laws = None
        if depth and any(limits[b] and row.sampled for b, row in enumerate(rows)):
            laws = torch.zeros(len(rows), depth, self.vocab_size, device=device)
        proposal = Proposal(tokens, laws, list(limits), torch.tensor(limits, device=device))
        for draft, members in self._groups(rows, limits):
            group = _Group(draft, [rows[b] for b in members], members, max(limits[b] for b in members))
            self._draft(group, proposal, uniforms, settings, keep)
        return proposal

    def _groups(self, rows: Sequence[Row], limits: list[int]) -> list[tuple[ServingDraft, list[int]]]:
        groups: dict[int, tuple[ServingDraft, list[int]]] = {}
        for b, row in enumerate(rows):
            if limits[b]:
                draft = self.serving(row.lane)
                groups.setdefault(id(draft), (draft, []))[1].append(b)
        return list(groups.values())

    def _draft(
        self,
        group: _Group,
        proposal: Proposal,
        uniforms_BK: Tensor,
        settings: LawSettings,
        keep: KeepDrafting | None,
    ) -> None:
        """Draw the group's tokens into the proposal, until the depth or until another is not worth it."""
        proposal.catch_up_tokens += sum(self.catch_up(row, len(row.tokens)) for row in group.rows)
        own, finite = settings[group.members], []
        fed, starts = group.first(self.cache.device)
        confidences: list[list[float]] = [[] for _ in group.rows]
        for j in range(group.depth):
            logits = read(group.draft.decoder, self.cache, group.slots, fed, starts, keep=1)[:, -1].float()
            finite.append(logits.sum(dim=-1).isfinite())
            token, confidence = self._draw(logits, group, proposal, own, uniforms_BK, j)
            proposal.tokens[group.members, j] = token
            fed, starts = token[:, None], [len(row.tokens) + j for row in group.rows]
            proposal.steps += 1
            if keep is not None:
                for known, value in zip(confidences, confidence.tolist(), strict=True):
                    known.append(value)
                if j + 1 < group.depth and not keep(group.members, confidences):
                    break
        self._close(group, proposal, torch.stack(finite, dim=1), confidences)

    def _draw(
        self,
        logits_GN: Tensor,
        group: _Group,
        proposal: Proposal,
        own: LawSettings,
        uniforms_BK: Tensor,
        j: int,
    ) -> tuple[Tensor, Tensor]:
        """Tokens [G] and the largest probability of each one's law [G]."""
        ids = group.draft.head_ids
        if any(row.shaped for row in group.rows):
            logits_GN, ids = self._shaped(logits_GN, ids, group, proposal.tokens, j), None
        elif ids is None:
            logits_GN = real_rows(logits_GN, self.vocab_size)
        if all(row.greedy for row in group.rows):
            best = logits_GN.max(dim=-1)
            return _token(best.indices, ids), (best.values - logits_GN.logsumexp(dim=-1)).exp()
        law_GN = process(logits_GN, own)
        drawn = draw(law_GN, uniforms_BK[group.members, j])
        for g, row in enumerate(group.rows):
            if row.coupled:
                noise = row.noise(len(row.tokens) + j, self.vocab_size).to(law_GN.device)
                drawn[g] = pick(law_GN[g], noise if ids is None else noise[ids])
        if proposal.laws is not None:
            self._record(proposal.laws, group.members, j, law_GN, ids)
        return _token(drawn, ids), law_GN.amax(dim=-1)

    def _record(
        self, laws_BKV: Tensor, members: list[int], j: int, law_GN: Tensor, ids: Tensor | None
    ) -> None:
        if ids is None:
            laws_BKV[members, j] = law_GN
        else:
            for g, b in enumerate(members):
                laws_BKV[b, j].index_copy_(0, ids, law_GN[g])

    def _shaped(
        self, logits_GN: Tensor, ids: Tensor | None, group: _Group, tokens_BK: Tensor, j: int
    ) -> Tensor:
        """Logits [G, V] after penalties and bias; -inf where the head has no score."""
        if ids is None:
            logits_GV = real_rows(logits_GN, self.vocab_size).clone()
        else:
            shape = (len(logits_GN), self.vocab_size)
            logits_GV = torch.full(shape, float("-inf"), device=logits_GN.device)
            logits_GV.index_copy_(1, ids, logits_GN)
        for g, row in enumerate(group.rows):
            if row.shaped:
                drafted = tokens_BK[group.members[g], :j].tolist()
                logits_GV[g] = shape_row(logits_GV[g : g + 1], row, drafted, j, self.ends)[0]
        return logits_GV

    def _close(
        self, group: _Group, proposal: Proposal, finite_GK: Tensor, confidences: list[list[float]]
    ) -> None:
        """Cut the limits at what was drawn; what stands behind the first bad logits is no proposal."""
        drawn = finite_GK.shape[1]
        sound = finite_GK.long().cumprod(dim=-1).sum(dim=-1)
        for g, b in enumerate(group.members):
            proposal.limits[b] = min(proposal.limits[b], drawn)
            proposal.confidences[b] = confidences[g]
        assert proposal.sound is not None
        proposal.sound[group.members] = torch.minimum(proposal.sound[group.members], sound)
        proposal.drafting += group.members

    def commit(self, row: Row, drafted: int, accepted: int) -> None:
        """The last drafted token was never fed, so after a full acceptance the cache is one token shorter."""
        if drafted:
            row.draft_length = len(row.tokens) - (2 if accepted == drafted else 1)

    def move(self, row: Row, source: int) -> None:
        """Copy what the cache holds of a row to its new slot."""
        self.cache.move(source, row.slot, row.draft_length)

    def unsound(self, row: Row) -> None:
        """From now on the row decodes plainly, and leaves nothing of itself behind."""
        row.plain_reason = "nonfinite"
        self.cache.clear(row.slot)


def _token(index: Tensor, ids: Tensor | None) -> Tensor:
    return index if ids is None else ids[index]


@dataclass(slots=True)
class _Group:
    """The rows of a round that one weight set drafts for, with their places in the batch."""

    draft: ServingDraft
    rows: list[Row]
    members: list[int]
    depth: int

    @property
    def slots(self) -> list[int]:
        return [row.slot for row in self.rows]

    def first(self, device: torch.device) -> tuple[Tensor, list[int]]:
        """Tokens [G, 2] of the first step and the positions that they start at: the last two of each row.

        After a full acceptance the cache lacks both, otherwise the first of them is written once more: no
        ragged step. A prompt of one token has no second: its place is padding (position -1).
        """
        tokens = [[row.tokens[-2] if len(row.tokens) > 1 else 0, row.tokens[-1]] for row in self.rows]
        return torch.tensor(tokens, device=device), [len(row.tokens) - 2 for row in self.rows]
