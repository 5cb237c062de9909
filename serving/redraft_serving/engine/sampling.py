"""Speculative sampling as pure tensor functions: no models, no rows, no state.

Modified rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2): a drafted
token x is accepted with probability min(1, p(x)/q(x)), where q is exactly the law that x was drawn from; the
first miss is redrawn from the residual max(p - q, 0), and a round without a miss adds a bonus token from p.
The emitted tokens then follow p exactly. Legend: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification decided, per row [B]."""

    accepted: Tensor
    """How many drafted tokens are kept: the length of the accepted prefix."""
    last: Tensor
    """The token after it: the correction of the first miss, or the bonus."""


def draw(law_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """One token [B] per row by inverting the cumulative law; a token of probability 0 is never drawn.

    Summed in double precision: over 50,000 entries a float32 sum would shift the law.
    """
    cumulative = law_BV.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, uniform_B.double()[:, None] * total, right=True)
    # u * total can round up to total: the last token that has any probability then.
    last = (cumulative < total).sum(dim=-1, keepdim=True)
    return torch.minimum(drawn, last).squeeze(-1)


def pick(law_V: Tensor, noise_V: Tensor) -> Tensor:
    """The token with the largest p / noise: it follows the law if the noise is exponential (Gumbel-max)."""
    return (law_V / noise_V).argmax(dim=-1)


def residual(p_BV: Tensor, q_BV: Tensor) -> Tensor:
    """The law to redraw a miss from: max(p - q, 0), or p itself where rounding left nothing of it."""
    rest = (p_BV - q_BV).clamp_min(0)
    empty = rest.sum(dim=-1, keepdim=True) <= 0
    return torch.where(empty, p_BV, rest)


def prefix_length(kept_BK: Tensor) -> Tensor:
    """Length [B] of the run of True at the beginning of each row."""
    return kept_BK.long().cumprod(dim=-1).sum(dim=-1)


def accept_sampled(
    drafted_BK: Tensor, q_BKV: Tensor, p_BKV: Tensor, uniform_BK: Tensor, uniform_B: Tensor, limit_B: Tensor
) -> Verdict:
    """Accept drafted tokens against the target's laws p [B, K+1, V], of each row its `limit` first ones."""
    ratio_p = p_BKV[:, :-1].gather(-1, drafted_BK[..., None]).squeeze(-1)
    ratio_q = q_BKV.gather(-1, drafted_BK[..., None]).squeeze(-1)
    # u < p/q without the division: q(x) > 0 for every token that was drawn from q.
    kept = uniform_BK * ratio_q < ratio_p
    accepted = prefix_length(kept & _within(limit_B, kept))
    rows = torch.arange(len(accepted), device=accepted.device)
    p_last = p_BKV[rows, accepted]
    if q_BKV.shape[1] == 0:
        return Verdict(accepted, draw(p_last, uniform_B))
    q_last = q_BKV[rows, accepted.clamp_max(q_BKV.shape[1] - 1)]
    law = torch.where((accepted < limit_B)[:, None], residual(p_last, q_last), p_last)
    return Verdict(accepted, draw(law, uniform_B))


def accept_matched(drafted_BK: Tensor, best_BK: Tensor, limit_B: Tensor) -> Verdict:
    """Keep what equals the target's own choice: best [B, K+1] is its largest logit, or its pick under a noise
    that the draft saw as well. What is emitted is always the target's choice.
    """
    kept = drafted_BK == best_BK[:, :-1]
    accepted = prefix_length(kept & _within(limit_B, kept))
    return Verdict(accepted, best_BK.gather(-1, accepted[:, None]).squeeze(-1))


def _within(limit_B: Tensor, kept_BK: Tensor) -> Tensor:
    return torch.arange(kept_BK.shape[1], device=kept_BK.device)[None] < limit_B[:, None]
