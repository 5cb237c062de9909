"""The target's law at emitted positions: what a sample keeps for the trainer, and log-probabilities for the
client.

Legend: N emitted positions of a round, V vocabulary, k logged entries.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from redraft_queue.records import Sample, Sampling
from torch import Tensor

from redraft_serving.engine.interface import TokenLogprob
from redraft_serving.engine.rows import EmittedToken, Row

LOWEST_LOGPROB = -1e4
"""Stands for -inf: probability 0 in float16 and float32 alike."""


def record_laws(
    shaped: Tensor, places: Sequence[tuple[int, int]], tokens: Sequence[EmittedToken], k: int
) -> None:
    """Keep the k most likely tokens of the law at each place (row, position) on its emitted token."""
    if not places:
        return
    rows, positions = zip(*places, strict=True)
    law_NV = torch.log_softmax(shaped[list(rows), list(positions)], dim=-1)
    logprobs, ids = law_NV.topk(min(k, law_NV.shape[-1]), dim=-1)
    tails = (1.0 - logprobs.exp().sum(dim=-1)).clamp_min(0).tolist()
    ids, logprobs = ids.int().cpu(), logprobs.clamp_min(LOWEST_LOGPROB).half().cpu()
    for n, token in enumerate(tokens):
        token.topk_ids, token.topk_logprobs, token.tail_mass = ids[n], logprobs[n], tails[n]


def record_logprobs(
    raw: Tensor, places: Sequence[tuple[int, int]], tokens: Sequence[EmittedToken], top: int
) -> None:
    """Log-probabilities of emitted tokens under the target's own law, before penalties (vLLM's
    `raw_logprobs`).
    """
    if not places:
        return
    rows, positions = zip(*places, strict=True)
    law_NV = torch.log_softmax(raw[list(rows), list(positions)], dim=-1)
    own = (
        law_NV.gather(-1, torch.tensor([[t.token_id] for t in tokens], device=law_NV.device))
        .squeeze(-1)
        .tolist()
    )
    best, ids = law_NV.topk(top, dim=-1) if top else (law_NV[:, :0], law_NV[:, :0].long())
    for token, logprob, id_row, best_row in zip(tokens, own, ids.tolist(), best.tolist(), strict=True):
        token.logprob = TokenLogprob(token.token_id, logprob, tuple(zip(id_row, best_row, strict=True)))


def sample_of(
    row: Row, finish_reason: str, target_fingerprint: str, tokenizer_fingerprint: str
) -> Sample | None:
    """The record of a finished choice, or None where nothing was recorded."""
    tokens = row.emitted
    if not tokens or any(token.topk_ids is None for token in tokens):
        return None
    ids = torch.stack([token.topk_ids for token in tokens if token.topk_ids is not None])
    logprobs = torch.stack([token.topk_logprobs for token in tokens if token.topk_logprobs is not None])
    return Sample(
        request_id=row.request.request_id,
        choice=row.request.choice,
        domain=row.request.domain,
        created_ms=time.time_ns() // 1_000_000,
        target_fingerprint=target_fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint,
        prompt_ids=row.request.prompt_ids,
        output_ids=tuple(token.token_id for token in tokens),
        topk_ids=_little_endian(ids),
        topk_logprobs=_little_endian(logprobs),
        tail_mass=_little_endian(torch.tensor([token.tail_mass for token in tokens], dtype=torch.float16)),
        top_k_logged=ids.shape[1],
        sampling=_sampling(row),
        user=row.request.user,
        draft_version=tuple((version, int(rounds)) for version, rounds in row.versions),
        outcome=tuple(_outcome(row, token) for token in tokens),
        drafted_id=tuple(token.drafted_id if _outcome(row, token) == "corrected" else -1 for token in tokens),
        finish_reason=finish_reason,
        queue_seconds=row.admitted - row.submitted,
        prefill_seconds=row.decoding - row.admitted,
        decode_seconds=time.monotonic() - row.decoding,
        rounds=row.rounds,
        proposed=0 if row.coupled else row.draft_proposed,
        tested=0 if row.coupled else row.draft_tested,
    )


def _outcome(row: Row, token: EmittedToken) -> str:
    """What became of the draft model's proposal. To a trainer, tokens that others guessed are plain ones, and
    so are those of a seeded row: they are matched, not accepted by the rule that acceptance is measured by.
    """
    return token.outcome if token.by_draft and not row.coupled else "plain"


def _little_endian(values: Tensor) -> bytes:
    array = values.numpy()
    return bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _sampling(row: Row) -> Sampling:
    settings = row.request.sampling
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        repetition_penalty=settings.repetition_penalty,
        # A minimum length bars the ends of an answer: to whoever reads the law, that is a bias like any
        # other.
        has_logit_bias=bool(settings.logit_bias) or row.request.min_tokens > 0,
    )
