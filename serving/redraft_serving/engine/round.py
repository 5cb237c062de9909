"""One round of a batch: draft, verify, accept, commit.

Legend: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from redraft_models.laws import LawSettings, law_settings, process, real_rows
from torch import Tensor
from transformers import PreTrainedModel

from redraft_serving.engine.cache import PREFILL_CHUNK, SlotCache
from redraft_serving.engine.proposer import Proposal, Proposer
from redraft_serving.engine.rows import Row
from redraft_serving.engine.sampling import Verdict, accept_greedy, accept_sampled
from redraft_serving.engine.shaping import shape_row


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round decided, ready to be committed row by row."""

    proposal: Proposal
    drafted: list[list[int]]
    accepted: list[int]
    last: list[int]
    failed: list[bool]
    """Rows whose target logits are not finite."""
    raw: Tensor
    """The target's logits [B, K+1, V] as the model gave them, float32, V the ids that have a token."""
    shaped: Tensor
    """The same after penalties, bias and minimum length: what its law was made of."""


class Rounds:
    """Runs rounds over the target and a proposer. Knows tokens and laws, not texts, sinks or queues."""

    def __init__(
        self,
        target: PreTrainedModel,
        proposer: Proposer,
        *,
        slots: int,
        max_len: int,
        vocab_size: int,
        ends: frozenset[int],
        num_speculative_tokens: int,
    ) -> None:
        self.target, self.proposer = target, proposer
        self.cache = SlotCache(target, slots, max_len)
        self.max_len, self.vocab_size, self.ends = max_len, vocab_size, ends
        self.num_speculative_tokens = num_speculative_tokens

    def admit(self, row: Row) -> None:
        """Read the prompt, but for its last token: the first round feeds that one."""
        prompt = row.tokens[:-1]
        for start in range(0, len(prompt), PREFILL_CHUNK):
            chunk = torch.tensor([prompt[start : start + PREFILL_CHUNK]], device=self.cache.device)
            positions = torch.arange(start, start + chunk.shape[1], device=self.cache.device)[None]
            self.cache.forward(self.target, [row.slot], chunk, positions, logits_to_keep=1)
        if row.request.num_speculative_tokens != 0:
            self.proposer.admit(row)

    def run(self, rows: Sequence[Row]) -> RoundResult:
        """Draft, verify and accept one round; `commit` then takes each row's share."""
        settings = self._settings(rows)
        limits = [self._limit(row) for row in rows]
        uniforms = self._uniforms(rows, limits)
        proposal = self.proposer.propose(rows, limits, uniforms[:, : max(limits, default=0)], settings)
        raw = self._verify(rows, proposal)
        shaped = self._shaped(rows, proposal, raw)
        verdict = self._accept(proposal, shaped, settings, uniforms)
        return _result(proposal, verdict, raw, shaped)

    def commit(self, row: Row, drafted: int, accepted: int, tokens: Sequence[int]) -> None:
        """Append what a row keeps; what was rejected vanishes because the length does not cover it."""
        row.tokens.extend(tokens)
        row.output_counts.update(tokens)
        self.proposer.commit(row, drafted, accepted)

    def move(self, row: Row, source: int) -> None:
        """The row's slot changed from `source`: take what both caches hold of it along."""
        self.cache.move(source, row.slot, len(row.tokens) - 1)
        self.proposer.move(row, source)

    def _settings(self, rows: Sequence[Row]) -> LawSettings:
        laws = [row.request.sampling for row in rows]
        return law_settings([(s.temperature, s.top_k, s.top_p, s.min_p) for s in laws], self.cache.device)

    def _limit(self, row: Row) -> int:
        """How many tokens may be drafted so that neither `max_tokens` nor the window is overshot."""
        asked = row.request.num_speculative_tokens
        k = self.num_speculative_tokens if asked is None or asked == "auto" else asked
        if row.plain_reason is not None:
            return 0
        room = min(row.remaining, self.max_len - len(row.tokens)) - 1
        return max(0, min(k, room))

    def _uniforms(self, rows: Sequence[Row], limits: list[int]) -> Tensor:
        """[B, 2K+1]: K to draft, K to accept, one for the last token. Greedy rows draw nothing."""
        depth = max(limits, default=0)
        uniforms = torch.zeros(len(rows), 2 * depth + 1, dtype=torch.float64)
        for b, (row, k) in enumerate(zip(rows, limits, strict=True)):
            if not row.greedy:
                own = row.uniforms(k)
                uniforms[b, :k], uniforms[b, depth : depth + k], uniforms[b, -1] = (
                    own[:k],
                    own[k : 2 * k],
                    own[-1],
                )
        return uniforms.to(self.cache.device)

    def _verify(self, rows: Sequence[Row], proposal: Proposal) -> Tensor:
        """The target's logits [B, K+1, V] after the last token and after each drafted one, in one pass."""
        device = self.cache.device
        last = torch.tensor([[row.tokens[-1]] for row in rows], device=device)
        fed = torch.cat((last, proposal.tokens), dim=1)
        limits = torch.tensor(proposal.limits, device=device)[:, None]
        start = torch.tensor([[len(row.tokens) - 1] for row in rows], device=device)
        step = torch.arange(fed.shape[1], device=device)[None]
        positions = torch.where(step <= limits, start + step, -1)
        logits = self.cache.forward(self.target, [row.slot for row in rows], fed, positions)
        return real_rows(logits, self.vocab_size).float()

    def _shaped(self, rows: Sequence[Row], proposal: Proposal, raw: Tensor) -> Tensor:
        if not any(row.shaped for row in rows):
            return raw
        shaped = raw.clone()
        for b, row in enumerate(rows):
            if row.shaped:
                shaped[b] = shape_row(raw[b], row, proposal.tokens[b].tolist(), 0, self.ends)
        return shaped

    def _accept(self, proposal: Proposal, shaped: Tensor, settings: LawSettings, uniforms: Tensor) -> Verdict:
        limits = torch.tensor(proposal.limits, device=shaped.device)
        depth = (uniforms.shape[1] - 1) // 2
        if settings.all_greedy:
            return accept_greedy(proposal.tokens, shaped.argmax(dim=-1), limits)
        width = shaped.shape[1]
        laws = process(shaped.flatten(0, 1), settings.repeat_interleave(width)).view_as(shaped)
        drafted_laws = laws[:, :0] if proposal.laws is None else proposal.laws
        accept_uniforms = uniforms[:, depth : depth + proposal.tokens.shape[1]]
        return accept_sampled(proposal.tokens, drafted_laws, laws, accept_uniforms, uniforms[:, -1], limits)


def _result(proposal: Proposal, verdict: Verdict, raw: Tensor, shaped: Tensor) -> RoundResult:
    failed = ~raw.sum(dim=-1).isfinite().all(dim=-1)
    # The one synchronisation of a round: everything that the host needs, in one transfer.
    packed = torch.cat(
        (verdict.accepted[:, None], verdict.last[:, None], failed.long()[:, None], proposal.tokens), dim=1
    ).tolist()
    return RoundResult(
        proposal=proposal,
        drafted=[values[3:] for values in packed],
        accepted=[values[0] for values in packed],
        last=[values[1] for values in packed],
        failed=[bool(values[2]) for values in packed],
        raw=raw,
        shaped=shaped,
    )
