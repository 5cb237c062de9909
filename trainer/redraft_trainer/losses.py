"""Distillation losses between a draft and the target's logged law. Pure functions, one value per position.

The target's law is known at its k best tokens and, lumped together, at all others (the tail). Both laws are
compared on these k + 1 buckets; a divergence of bucketed laws is a lower bound of the full one
(data-processing inequality). Legend: N positions, V vocabulary, K logged tokens. Only one [N, V] tensor is
made besides the logits: the softmax that the backward pass of logsumexp needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from redraft_models.laws import real_rows
from torch import Tensor

SMALLEST = 1e-6
"""Least tail probability that is told from 0: float32 keeps about 1e-7 of a sum near 1."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The target's law at N positions. Probabilities and tail of a position sum to 1."""

    token_N: Tensor
    """The token that the target emitted, int64."""
    topk_ids_NK: Tensor
    topk_probs_NK: Tensor
    """float32; 0 where a position has fewer than K logged tokens."""
    tail_N: Tensor
    valid_NK: Tensor
    """False where a position has fewer than K logged tokens; the id there repeats the first one."""

    def __getitem__(self, index: slice | Tensor) -> Targets:
        """Some positions."""
        parts = (self.token_N, self.topk_ids_NK, self.topk_probs_NK, self.tail_N, self.valid_NK)
        return Targets(*(part[index] for part in parts))

    def __len__(self) -> int:
        return len(self.token_N)


LossFunction = Callable[[Tensor, Targets, int], Tensor]


def forward_kl(logits_NV: Tensor, targets: Targets, vocab_size: int) -> Tensor:
    """KL(target || draft) [N] in nats over the k + 1 buckets (Hinton et al. 2015; online for drafts: Liu et
    al. 2024).
    """
    log_q_NK, log_q_tail_N = bucket_law(logits_NV, targets, vocab_size)
    return _kl(targets.topk_probs_NK, log_q_NK) + _kl(targets.tail_N, log_q_tail_N, summed=False)


def reverse_kl(logits_NV: Tensor, targets: Targets, vocab_size: int) -> Tensor:
    """KL(draft || target) [N] in nats (mode-seeking; Gu et al. 2024, MiniLLM). Target probabilities are
    kept above SMALLEST.
    """
    log_q_NK, log_q_tail_N = bucket_law(logits_NV, targets, vocab_size)
    log_p_NK = targets.topk_probs_NK.clamp_min(SMALLEST).log()
    inside = torch.where(targets.valid_NK, log_q_NK.exp() * (log_q_NK - log_p_NK), 0.0).sum(-1)
    return inside + log_q_tail_N.exp() * (log_q_tail_N - targets.tail_N.clamp_min(SMALLEST).log())


def jsd(logits_NV: Tensor, targets: Targets, vocab_size: int) -> Tensor:
    """Jensen-Shannon divergence [N] in nats, at most ln 2: mean KL of both laws to their even mixture."""
    log_q_NK, log_q_tail_N = bucket_law(logits_NV, targets, vocab_size)
    inside = _jensen_shannon(targets.topk_probs_NK, log_q_NK)
    return torch.where(targets.valid_NK, inside, 0.0).sum(-1) + _jensen_shannon(targets.tail_N, log_q_tail_N)


def total_variation(logits_NV: Tensor, targets: Targets, vocab_size: int) -> Tensor:
    """1 - sum of min(p, q) over the buckets [N]: one minus acceptance (Leviathan et al. 2023, cor. 3.6)."""
    log_q_NK, log_q_tail_N = bucket_law(logits_NV, targets, vocab_size)
    inside = torch.where(targets.valid_NK, (targets.topk_probs_NK - log_q_NK.exp()).abs(), 0.0).sum(-1)
    return 0.5 * (inside + (targets.tail_N - log_q_tail_N.exp()).abs())


def cross_entropy(logits_NV: Tensor, targets: Targets, vocab_size: int) -> Tensor:
    """-log q(emitted token) [N] in nats; needs no law."""
    logits = real_rows(logits_NV.float(), vocab_size)
    return torch.logsumexp(logits, dim=-1) - logits.gather(-1, targets.token_N[:, None])[:, 0]


def bucket_law(logits_NV: Tensor, targets: Targets, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The draft's log-law on the target's buckets: [N, K] at the logged tokens and [N] of the tail (>= log
    SMALLEST).
    """
    logits = real_rows(logits_NV.float(), vocab_size)
    log_q_NK = logits.gather(-1, targets.topk_ids_NK) - torch.logsumexp(logits, dim=-1, keepdim=True)
    inside_N = torch.where(targets.valid_NK, log_q_NK.exp(), 0.0).sum(-1)
    return log_q_NK, torch.log1p(-inside_N.clamp(max=1.0 - SMALLEST))


def _kl(p: Tensor, log_q: Tensor, *, summed: bool = True) -> Tensor:
    """p (log p - log q) with 0 log 0 = 0."""
    entropy: Tensor = torch.special.xlogy(p, p)
    terms = entropy - torch.where(p > 0, p * log_q, 0.0)
    return terms.sum(-1) if summed else terms


def _jensen_shannon(p: Tensor, log_q: Tensor) -> Tensor:
    """One bucket's share, with gradients that stay finite where p or q is 0."""
    q = log_q.exp()
    log_m = torch.log(0.5 * (p + q) + torch.finfo(torch.float32).tiny)
    entropy: Tensor = torch.special.xlogy(p, p)
    return 0.5 * (entropy - p * log_m + q * (log_q - log_m))


LOSSES: dict[str, LossFunction] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jsd": jsd,
    "total_variation": total_variation,
    "cross_entropy": cross_entropy,
}
