"""One round of a batch: plan, draft, verify, accept.

Legend: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from redraft_models.laws import LawSettings, law_settings, process, real_rows
from torch import Tensor

from redraft_serving.engine.cache import SlotCache
from redraft_serving.engine.counts import tested_tokens
from redraft_serving.engine.forward.decoder import Decoder, read
from redraft_serving.engine.guesses import add_guesses
from redraft_serving.engine.planning import Planner
from redraft_serving.engine.proposer import Proposal
from redraft_serving.engine.rows import Row
from redraft_serving.engine.sampling import Verdict, accept_matched, accept_sampled, pick
from redraft_serving.engine.shaping import shape_row
from redraft_serving.engine.stopwatch import Stopwatch
from redraft_serving.policy.types import DRAFT, Plan, RoundTimes, RowOutcome, RowView


@dataclass(slots=True)
class RoundResult:
    """What a round decided, ready to be committed row by row."""

    views: list[RowView]
    plan: Plan
    proposal: Proposal
    drafted: list[list[int]]
    limits: list[int]
    """[B] tokens that each row proposed in earnest."""
    accepted: list[int]
    last: list[int]
    failed: list[bool]
    """Rows whose target logits are not finite."""
    raw: Tensor
    """The target's logits [B, K+1, V] as the model gave them, float32, V the ids that have a token."""
    shaped: Tensor
    """The same after penalties, bias and minimum length: what its law was made of."""
    watch: Stopwatch

    def by_draft(self, b: int) -> bool:
        """True where the draft model proposed for row b."""
        return self.plan.rows[b].proposer == DRAFT and self.limits[b] > 0


class Rounds:
    """Runs rounds over the target and its proposers. Knows tokens and laws, not texts, sinks or queues."""

    def __init__(
        self, target: Decoder, cache: SlotCache, planner: Planner, vocab_size: int, ends: frozenset[int]
    ) -> None:
        self.target, self.cache, self.planner = target, cache, planner
        self.proposer = planner.proposer
        self.vocab_size, self.ends = vocab_size, ends
        self.seconds = {"draft": 0.0, "verify": 0.0, "rest": 0.0}

    def run(self, rows: Sequence[Row]) -> RoundResult:
        """Plan, draft, verify and accept one round; `commit` then takes each row's share."""
        self.planner.catch_up(rows)
        watch = Stopwatch(self.cache.device)
        settings = self._settings(rows)
        views = self.planner.views(rows)
        plan = self.planner.plan(views)
        uniforms = self._uniforms(rows, [row.k for row in plan.rows])
        watch.mark()
        proposal = self._propose(rows, views, plan, uniforms, settings)
        watch.mark()
        raw = self._verify(rows, proposal)
        watch.mark()
        shaped = self._shaped(rows, proposal, raw)
        verdict = self._accept(rows, proposal, shaped, settings, uniforms)
        result = _result(views, plan, proposal, verdict, raw, shaped, watch)
        for b, row in enumerate(rows):
            if result.limits[b] < proposal.limits[b]:
                self.proposer.unsound(row)
        return result

    def commit(self, row: Row, result: RoundResult, b: int, tokens: Sequence[int]) -> None:
        """Append what a row keeps; what was rejected vanishes because the length does not cover it."""
        row.grow(tokens)
        self.proposer.commit(row, result.limits[b] if result.by_draft(b) else 0, result.accepted[b])

    def observe(self, result: RoundResult) -> None:
        """Tell the policy what the round gave and took; called at its very end."""
        result.watch.mark()
        before, draft, verify, after = result.watch.spans()
        for name, seconds in (("draft", draft), ("verify", verify), ("rest", before + after)):
            self.seconds[name] += seconds
        proposal = result.proposal
        times = RoundTimes(
            rows=len(result.views),
            width=1 + proposal.tokens.shape[1],
            verify=verify,
            draft_rows=len(proposal.drafting),
            draft_steps=proposal.steps,
            draft=draft,
            catch_up_tokens=proposal.catch_up_tokens,
            rest=before + after,
        )
        outcomes = [_outcome(result, b) for b in range(len(result.views))]
        self.planner.observe(result.views, result.plan, times, outcomes)

    def move(self, row: Row, source: int) -> None:
        """The row's slot changed from `source`: take what both caches hold of it along."""
        self.cache.move(source, row.slot, row.length)
        self.proposer.move(row, source)

    def _settings(self, rows: Sequence[Row]) -> LawSettings:
        laws = [row.request.sampling for row in rows]
        return law_settings([(s.temperature, s.top_k, s.top_p, s.min_p) for s in laws], self.cache.device)

    def _uniforms(self, rows: Sequence[Row], limits: list[int]) -> Tensor:
        """[B, 2K+1]: K to draft, K to accept, one for the last token. Rows that are matched draw nothing."""
        depth = max(limits, default=0)
        uniforms = torch.zeros(len(rows), 2 * depth + 1, dtype=torch.float64)
        for b, (row, k) in enumerate(zip(rows, limits, strict=True)):
            if row.sampled:
                own = row.uniforms(k)
                uniforms[b, :k], uniforms[b, depth : depth + k], uniforms[b, -1] = (
                    own[:k],
                    own[k : 2 * k],
                    own[-1],
                )
        return uniforms.to(self.cache.device)

    def _propose(
        self,
        rows: Sequence[Row],
        views: Sequence[RowView],
        plan: Plan,
        uniforms: Tensor,
        settings: LawSettings,
    ) -> Proposal:
        drafted = [one.k if one.proposer == DRAFT else 0 for one in plan.rows]
        # On a GPU each question would make it wait for the host: there the plan's depth stands.
        keep = self.planner.keep(views, plan) if self.cache.device.type == "cpu" else None
        proposal = self.proposer.propose(rows, drafted, uniforms, settings, keep)
        guesses = {
            b: rows[b].guesses[one.proposer][: one.k]
            for b, one in enumerate(plan.rows)
            if one.k and one.proposer is not None and one.proposer != DRAFT
        }
        add_guesses(proposal, guesses, rows, self.vocab_size)
        depth = max(proposal.limits, default=0)
        proposal.tokens = proposal.tokens[:, :depth]
        proposal.laws = None if proposal.laws is None else proposal.laws[:, :depth]
        return proposal

    def _verify(self, rows: Sequence[Row], proposal: Proposal) -> Tensor:
        """The target's logits [B, K+1, V] after the last token and after each drafted one, in one pass."""
        last = torch.tensor([[row.tokens[-1]] for row in rows], device=self.cache.device)
        fed = torch.cat((last, proposal.tokens), dim=1)
        starts = [len(row.tokens) - 1 for row in rows]
        counts = [limit + 1 for limit in proposal.limits]
        logits = read(self.target, self.cache, [row.slot for row in rows], fed, starts, counts)
        return real_rows(logits, self.vocab_size).float()

    def _shaped(self, rows: Sequence[Row], proposal: Proposal, raw: Tensor) -> Tensor:
        if not any(row.shaped for row in rows):
            return raw
        shaped = raw.clone()
        for b, row in enumerate(rows):
            if row.shaped:
                shaped[b] = shape_row(raw[b], row, proposal.tokens[b].tolist(), 0, self.ends)
        return shaped

    def _accept(
        self,
        rows: Sequence[Row],
        proposal: Proposal,
        shaped: Tensor,
        settings: LawSettings,
        uniforms: Tensor,
    ) -> Verdict:
        limits = torch.tensor(proposal.limits, device=shaped.device)
        if proposal.sound is not None:
            limits = torch.minimum(limits, proposal.sound)
        if all(row.greedy for row in rows):
            return accept_matched(proposal.tokens, shaped.argmax(dim=-1), limits)
        width = shaped.shape[1]
        laws = process(shaped.flatten(0, 1), settings.repeat_interleave(width)).view_as(shaped)
        matched = accept_matched(proposal.tokens, self._choices(rows, laws), limits)
        if not any(row.sampled for row in rows):
            return matched
        depth, count = (uniforms.shape[1] - 1) // 2, proposal.tokens.shape[1]
        q = proposal.laws
        if q is None:
            q = laws.new_zeros(len(rows), count, laws.shape[-1])
        drawn = accept_sampled(
            proposal.tokens, q, laws, uniforms[:, depth : depth + count], uniforms[:, -1], limits
        )
        sampled = torch.tensor([row.sampled for row in rows], device=shaped.device)
        return Verdict(
            torch.where(sampled, drawn.accepted, matched.accepted),
            torch.where(sampled, drawn.last, matched.last),
        )

    def _choices(self, rows: Sequence[Row], laws_BTV: Tensor) -> Tensor:
        """[B, T] the target's choice at each position: its best token, or its pick under a row's noise."""
        choices = laws_BTV.argmax(dim=-1)
        for b, row in enumerate(rows):
            if row.coupled:
                for t in range(laws_BTV.shape[1]):
                    noise = row.noise(len(row.tokens) + t, laws_BTV.shape[-1]).to(laws_BTV.device)
                    choices[b, t] = pick(laws_BTV[b, t], noise)
        return choices


def _result(
    views: list[RowView],
    plan: Plan,
    proposal: Proposal,
    verdict: Verdict,
    raw: Tensor,
    shaped: Tensor,
    watch: Stopwatch,
) -> RoundResult:
    failed = ~raw.sum(dim=-1).isfinite().all(dim=-1)
    limits = torch.tensor(proposal.limits, device=raw.device)
    sound = limits if proposal.sound is None else torch.minimum(limits, proposal.sound)
    # The one synchronisation of a round: everything that the host needs, in one transfer.
    head = torch.stack((verdict.accepted, verdict.last, failed.long(), sound), dim=1)
    packed = torch.cat((head, proposal.tokens), dim=1).tolist()
    return RoundResult(
        views=views,
        plan=plan,
        proposal=proposal,
        drafted=[values[4:] for values in packed],
        limits=[values[3] for values in packed],
        accepted=[values[0] for values in packed],
        last=[values[1] for values in packed],
        failed=[bool(values[2]) for values in packed],
        raw=raw,
        shaped=shaped,
        watch=watch,
    )


def _outcome(result: RoundResult, b: int) -> RowOutcome:
    limit, accepted = result.limits[b], result.accepted[b]
    confidences = tuple(result.proposal.confidences.get(b, ()))
    return RowOutcome(limit, tested_tokens(limit, accepted), accepted, accepted + 1, confidences)
