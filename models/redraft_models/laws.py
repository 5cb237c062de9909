"""Next-token laws: how logits become the probabilities that a request draws from.

Serving draws from these laws, and the trainer measures acceptance under them; both call the same functions so
that a draft is measured as it is served. Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GREEDY_EPSILON = 1e-5
"""At or under this temperature a law is a one-hot on the largest logit, for target and draft alike."""


@dataclass(frozen=True, slots=True)
class LawSettings:
    """Per-row settings, each [B]. top_k 0 and top_p 1 and min_p 0 switch a cut-off off."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def __getitem__(self, index: Tensor | slice | list[int]) -> LawSettings:
        """The settings of some rows."""
        return LawSettings(self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index])

    def repeat_interleave(self, times: int) -> LawSettings:
        """Each row's settings `times` times in a row: for positions of a row flattened into the batch."""
        parts = (self.temperature, self.top_k, self.top_p, self.min_p)
        return LawSettings(*(part.repeat_interleave(times) for part in parts))

    @property
    def all_greedy(self) -> bool:
        """True where no row samples, so that argmax is enough."""
        return bool((self.temperature <= GREEDY_EPSILON).all())


def law_settings(
    rows: list[tuple[float, int, float, float]], device: torch.device | str = "cpu"
) -> LawSettings:
    """Build LawSettings from (temperature, top_k, top_p, min_p) per row."""
    temperature, top_k, top_p, min_p = zip(*rows, strict=True) if rows else ((), (), (), ())
    return LawSettings(
        torch.tensor(temperature, dtype=torch.float32, device=device),
        torch.tensor(top_k, dtype=torch.long, device=device),
        torch.tensor(top_p, dtype=torch.float32, device=device),
        torch.tensor(min_p, dtype=torch.float32, device=device),
    )


def process(logits_BV: Tensor, settings: LawSettings) -> Tensor:
    """The processed law [B, V] (float32, rows sum to 1): temperature, then top-k, top-p, min-p.

    Greedy rows are a one-hot on the first largest logit. Each cut-off works on the law that the one before
    left, as vLLM and transformers order them; ties at the k-th value are broken by id, so exactly k survive.
    """
    logits = logits_BV.float()
    greedy_B = settings.temperature <= GREEDY_EPSILON
    law = torch.softmax(logits / settings.temperature.masked_fill(greedy_B, 1.0)[:, None], dim=-1)
    cut_B = ~greedy_B & ((settings.top_k > 0) | (settings.top_p < 1.0) | (settings.min_p > 0.0))
    if bool(cut_B.any()):
        law[cut_B] = _cut(law[cut_B], settings[cut_B])
    if bool(greedy_B.any()):
        best = logits.argmax(dim=-1, keepdim=True)
        law = torch.where(greedy_B[:, None], torch.zeros_like(law).scatter_(-1, best, 1.0), law)
    return law


def _cut(law_BV: Tensor, settings: LawSettings) -> Tensor:
    """Apply top-k, top-p and min-p to probabilities and renormalise. The best token always survives."""
    kept, order_BV = law_BV.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(law_BV.shape[-1], device=law_BV.device)[None]
    limit = settings.top_k.masked_fill(settings.top_k <= 0, law_BV.shape[-1])[:, None]
    kept = _normalised(kept.masked_fill(rank >= limit, 0.0))
    before = kept.cumsum(dim=-1) - kept
    top_p = settings.top_p[:, None]
    kept = kept.masked_fill((before >= top_p) & (top_p < 1.0) & (rank > 0), 0.0)
    kept = _normalised(kept.masked_fill(kept < settings.min_p[:, None] * kept[:, :1], 0.0))
    return torch.zeros_like(law_BV).scatter_(-1, order_BV, kept)


def _normalised(weights_BV: Tensor) -> Tensor:
    return weights_BV / weights_BV.sum(dim=-1, keepdim=True)


def overlap(p_BV: Tensor, q_BV: Tensor) -> Tensor:
    """Probability [B] that a token drawn from q is accepted against p: sum of min(p, q) (Leviathan et al.
    2023, cor. 3.6).
    """
    return torch.minimum(p_BV, q_BV).sum(dim=-1)


def real_rows(logits: Tensor, vocab_size: int) -> Tensor:
    """A view [..., vocab_size] of logits [..., V]: rows that no token has get no probability at all.

    Target and draft may be padded to different sizes; behind this view their laws are over the same ids.
    """
    return logits[..., :vocab_size]


def restrict(logits_BV: Tensor, head_ids: Tensor | None) -> Tensor:
    """Logits under a trimmed head: -inf at all ids but `head_ids` [S], so that a law on S comes of them.

    None is the full head, and answers the logits themselves. A draft that serves a trimmed head computes
    `logits_BV[:, head_ids]` alone; `spread` of the law of those is the law of these.
    """
    if head_ids is None:
        return logits_BV
    index = head_ids.to(logits_BV.device, torch.long)
    outside = torch.full_like(logits_BV, float("-inf"))
    return outside.index_copy_(-1, index, logits_BV.index_select(-1, index))


def spread(law_BS: Tensor, head_ids: Tensor, vocab_size: int) -> Tensor:
    """A law on the ids of a trimmed head [B, S] as one on the vocabulary [B, V]: 0 at all other ids."""
    law_BV = law_BS.new_zeros((*law_BS.shape[:-1], vocab_size))
    return law_BV.index_copy_(-1, head_ids.to(law_BS.device, torch.long), law_BS)
