"""Measured acceptance: how often the target would keep what a draft proposes, teacher-forced on held-out
continuations.

At each emitted position it is the sum of min(p, q), with p and q the target's and the draft's law after the
request's own temperature and cut-offs: the same functions that serving draws with. A greedy position counts
1 where the draft's best token is the one that the target emitted.

p is logged at k tokens; what all others share, the tail, takes the draft's own shape. That is the largest
overlap that the log allows, exact where the tail is empty or cut off. Positions with more than UNCOVERED
outside of the logged tokens are counted, so that a reader can tell how much rests on it.

Under a trimmed head q is the law on its ids alone, as serving draws from it, and what p gives to others is
lost. The tail keeps the shape of the full head, so that its part outside of the trimmed one is lost too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from redraft_models.laws import (
    GREEDY_EPSILON,
    LawSettings,
    law_settings,
    overlap,
    process,
    real_rows,
    restrict,
)
from redraft_queue.records import Sample
from torch import Tensor
from transformers import PreTrainedModel

from redraft_trainer.data import Batch, Example, build_examples, limit_tokens, scoring_batches
from redraft_trainer.forward import CHUNK, Head, Trunk
from redraft_trainer.losses import Targets
from redraft_trainer.reports import MeasureReport, RequestScore, position_scores

UNCOVERED = 0.01
"""Processed probability outside of the logged tokens above which a position is not covered by the log."""
CAP_PASSES = 3
BELOW = 1.0 - 1e-4
"""Keeps a token of the tail behind the last logged one, also where both sort by id at equal probability."""
SMALLEST = 1e-20


@dataclass(frozen=True, slots=True)
class Scores:
    """Per example: the overlap at each position [M] and whether the log covers it [M], on the CPU."""

    overlaps: list[Tensor]
    covered: list[Tensor]


def measure(
    draft_module: PreTrainedModel,
    samples: Iterable[Sample],
    vocab_size: int,
    *,
    max_length: int = 2048,
    token_budget: int = 4096,
    max_tokens: int | None = None,
    head_ids: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MeasureReport:
    """The report of a draft on samples; those that can't be measured are counted in `skipped`.

    `head_ids` [S] are those of the draft's trimmed head; None is the full head.
    """
    examples, skipped = build_examples(samples, max_length, vocab_size)
    if max_tokens is not None:
        examples = limit_tokens(examples, max_tokens)
    scores = score(
        draft_module,
        examples,
        vocab_size,
        token_budget=token_budget,
        head_ids=head_ids,
        progress=progress,
    )
    return report(examples, scores, skipped)


def report(
    examples: Sequence[Example], scores: Scores, skipped: Mapping[str, int] | None = None
) -> MeasureReport:
    """Sums per continuation, clustered by prompt: choices of a request and repeats of a prompt hang
    together.
    """
    return MeasureReport(
        scores=tuple(
            RequestScore(one.request_id, one.tokens, float(values.double().sum()), f"{one.prompt_hash:016x}")
            for one, values in zip(examples, scores.overlaps, strict=True)
        ),
        uncovered_tokens=sum(int((~covered).sum()) for covered in scores.covered),
        skipped=sum((skipped or {}).values()),
        positions=position_scores(values.tolist() for values in scores.overlaps),
    )


@torch.inference_mode()
def score(
    draft_module: PreTrainedModel,
    examples: Sequence[Example],
    vocab_size: int,
    *,
    token_budget: int = 4096,
    head: Head | None = None,
    head_ids: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Overlaps of every position of every example, in the examples' order. One pass per continuation.

    `head` computes the logits of the full head; under `head_ids` [S] the draft's law is one on these alone.
    """
    trunk, head, device = Trunk(draft_module), head or Head(draft_module), draft_module.device
    overlaps: list[Tensor] = [torch.empty(0)] * len(examples)
    covered: list[Tensor] = [torch.empty(0)] * len(examples)
    done = 0
    for indices, batch in scoring_batches(examples, token_budget):
        laws = law_settings([row_law(examples[i]) for i in indices], device)
        values, inside = batch_overlap(trunk, head, batch.to(device), laws, vocab_size, head_ids)
        sizes = [examples[i].tokens for i in indices]
        for i, value, is_covered in zip(
            indices, torch.split(values, sizes), torch.split(inside, sizes), strict=True
        ):
            overlaps[i], covered[i] = value.cpu(), is_covered.cpu()
        done += len(indices)
        if progress is not None:
            progress(done, len(examples))
    return Scores(overlaps, covered)


def row_law(example: Example) -> tuple[float, int, float, float]:
    """The request's own settings: temperature, top-k, top-p, min-p."""
    sampling = example.sampling
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p


def batch_overlap(
    trunk: torch.nn.Module,
    head: Head,
    batch: Batch,
    laws: LawSettings,
    vocab_size: int,
    head_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Overlap [N] and coverage [N] of one batch; `laws` holds one entry per row of the batch."""
    hidden_NH = trunk(batch.input_ids_BT, batch.loss_index_N)
    values, inside = [], []
    for start in range(0, len(batch.targets), CHUNK):
        piece = slice(start, start + CHUNK)
        logits = real_rows(head(hidden_NH[piece]).float(), vocab_size)
        value, covered = position_overlap(logits, batch.targets[piece], laws[batch.row_N[piece]], head_ids)
        values.append(value)
        inside.append(covered)
    return torch.cat(values), torch.cat(inside)


def position_overlap(
    logits_NV: Tensor, targets: Targets, laws: LawSettings, head_ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Overlap [N] of the processed laws, and whether the log covers the target's one [N].

    `logits_NV` are the full head's; the draft's law is restricted to `head_ids` [S] where they are given.
    """
    greedy_N = laws.temperature <= GREEDY_EPSILON
    value_N = (restrict(logits_NV, head_ids).argmax(-1) == targets.token_N).float()
    covered_N = torch.ones_like(greedy_N)
    rows = (~greedy_N).nonzero()[:, 0]
    if len(rows):
        value_N[rows], covered_N[rows] = _sampled_overlap(
            logits_NV[rows], targets[rows], laws[rows], head_ids
        )
    return value_N, covered_N


def _sampled_overlap(
    logits_NV: Tensor, targets: Targets, laws: LawSettings, head_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    p_NV = process(target_logits(logits_NV, targets), laws)
    q_NV = process(restrict(logits_NV, head_ids), laws)
    logged_NK = torch.where(targets.valid_NK, p_NV.gather(-1, targets.topk_ids_NK), 0.0)
    # Rounding may lift a sum a hair above 1.
    return overlap(p_NV, q_NV).clamp(max=1.0), logged_NK.sum(-1) >= 1.0 - UNCOVERED


def target_logits(draft_logits_NV: Tensor, targets: Targets) -> Tensor:
    """The target's log-law [N, V] before processing: as logged, and the tail in the draft's shape.

    No token of the tail is as likely as the last logged one, or it would have been logged: what the draft's
    shape puts above that goes to the rest of the tail.
    """
    shape_NV = torch.softmax(draft_logits_NV.scatter(-1, targets.topk_ids_NK, float("-inf")), dim=-1)
    # No row is left outside of the log where it holds the whole vocabulary: softmax of -inf alone.
    tail_NV = targets.tail_N[:, None] * shape_NV.nan_to_num_(nan=0.0)
    least_N = torch.where(targets.valid_NK, targets.topk_probs_NK, float("inf")).amin(dim=-1)
    law_NV = _capped(tail_NV, (least_N * BELOW)[:, None])
    probs_NK = targets.topk_probs_NK
    # Ids beyond a position's own k repeat its first token; so must the value, as the order of writes is not
    # defined.
    return law_NV.scatter_(
        -1, targets.topk_ids_NK, torch.where(targets.valid_NK, probs_NK, probs_NK[:, :1])
    ).log_()


def _capped(tail_NV: Tensor, most_N1: Tensor) -> Tensor:
    """The tail with nothing above `most`, its sum kept as far as there is room; a few passes are near
    enough.
    """
    for _ in range(CAP_PASSES):
        above_NV = tail_NV > most_N1
        if not bool(above_NV.any()):
            break
        excess_N1 = (tail_NV - most_N1).clamp_min(0.0).sum(-1, keepdim=True)
        below_N1 = tail_NV.masked_fill(above_NV, 0.0).sum(-1, keepdim=True)
        grown_NV = tail_NV * (1.0 + excess_N1 / below_N1.clamp_min(SMALLEST))
        tail_NV = torch.where(above_NV, most_N1, grown_NV)
    return torch.minimum(tail_NV, most_N1)
