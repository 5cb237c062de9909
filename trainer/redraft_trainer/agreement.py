"""Two checks of the instrument, made in every round.

A draft that equals the target must measure 1, and the champion's measured acceptance must agree with how
often its proposals were really kept: on the same positions, those where a proposal was tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from redraft_models.laws import law_settings, real_rows
from transformers import PreTrainedModel

from redraft_trainer.data import Example, scoring_batches
from redraft_trainer.forward import CHUNK, Head, Trunk
from redraft_trainer.intervals import ratio_interval
from redraft_trainer.measure import Scores, position_overlap, row_law, target_logits

CHECKED_BATCHES = 4
TOLERANCE = 0.02
"""Difference that the logged tail and 16-bit numbers may make beyond chance."""


@torch.inference_mode()
def self_acceptance(
    draft_module: PreTrainedModel, examples: Sequence[Example], vocab_size: int
) -> float | None:
    """Measured acceptance of a draft whose law is the logged one, on some batches; None without examples."""
    trunk, head = Trunk(draft_module), Head(draft_module)
    total, count = 0.0, 0
    for indices, batch in islice(scoring_batches(examples, 1024), CHECKED_BATCHES):
        batch = batch.to(draft_module.device)
        laws = law_settings([row_law(examples[i]) for i in indices], draft_module.device)
        piece = slice(0, CHUNK)
        targets = batch.targets[piece]
        logits = head(trunk(batch.input_ids_BT, batch.loss_index_N[piece]))
        logged = target_logits(real_rows(logits.float(), vocab_size), targets)
        values, _ = position_overlap(logged, targets, laws[batch.row_N[piece]])
        total, count = total + float(values.sum()), count + len(targets)
    return total / count if count else None


def live_agreement(examples: Sequence[Example], scores: Scores, serving: int | str) -> dict[str, Any]:
    """Live and measured acceptance of draft version `serving` on the positions where its proposals were
    tested.

    `agrees` is None where no such position was found. Differences are paired per position and clustered by
    prompt; the interval is two-sided at 95 %.
    """
    clusters: dict[int, list[float]] = {}
    for example, overlaps in zip(examples, scores.overlaps, strict=True):
        if example.tested is None or example.accepted is None or example.version != serving:
            continue
        sums = clusters.setdefault(example.prompt_hash, [0.0, 0.0, 0.0])
        sums[0] += float(example.tested.sum())
        sums[1] += float(example.accepted.sum())
        sums[2] += float(overlaps[example.tested].double().sum())
    tested, accepted, measured = (sum(sums[i] for sums in clusters.values()) for i in range(3))
    if not tested:
        return {"tested": 0, "live_acceptance": None, "measured_acceptance": None, "agrees": None}
    gaps, weights = [s[2] - s[1] for s in clusters.values()], [s[0] for s in clusters.values()]
    gap = ratio_interval(gaps, weights, tail=0.025)
    return {
        "tested": int(tested),
        "live_acceptance": accepted / tested,
        "measured_acceptance": measured / tested,
        "agrees": gap.low <= TOLERANCE and gap.high >= -TOLERANCE,
    }
