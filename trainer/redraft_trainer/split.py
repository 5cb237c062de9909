"""Which samples a round may use and for what. Light: a worker asks this for every sample, without torch."""

from __future__ import annotations

from typing import Literal

from redraft_queue.records import Sample

Part = Literal["train", "validation", "heldout"]


def split(sample: Sample, holdout_percent: int, validation_percent: int) -> Part:
    """Which part a sample belongs to, by its prompt alone: a repeated prompt never straddles.

    `validation_percent` is a share of the training prompts; an independent part of the hash decides it.
    """
    if sample.prompt_hash % 100 < holdout_percent:
        return "heldout"
    return "validation" if (sample.prompt_hash // 100) % 100 < validation_percent else "train"


def unusable(sample: Sample) -> str | None:
    """Why nothing can be learned or measured from this sample, in one word; None where it can."""
    if not sample.sampling.reproducible:
        return "not_reproducible"
    if not sample.prompt_ids or not sample.output_ids:
        return "empty"
    return None if sample.top_k_logged > 0 else "no_law"
