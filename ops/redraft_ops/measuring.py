"""Measured acceptance of registered drafts on what the stream holds out: behind `redraft measure` and the
demo.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redraft_ops.errors import UsageError
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from redraft_queue.records import Sample
    from redraft_trainer.intervals import Interval
    from redraft_trainer.reports import MeasureReport


@dataclass(frozen=True)
class Measured:
    """One draft's report; version None is the base draft."""

    version: int | None
    report: MeasureReport


def measure_versions(stack: Stack, domain: str, versions: Sequence[int | None]) -> list[Measured]:
    """Measure drafts on the same held-out samples of the whole stream, which no round trains on.

    Raises UsageError where the stream holds no such sample that can be measured, and what the registry and
    the adapter reader raise.
    """
    from redraft_models.adapter import read_adapter
    from redraft_models.loading import load_draft
    from redraft_models.serving_weights import ServingWeights
    from redraft_trainer.data import build_examples
    from redraft_trainer.measure import report, score

    settings = stack.settings
    draft, tokenizer, target, tokens = load_draft(settings.models, settings.cache_dir)
    longest = min(settings.models.max_model_len, draft.window or settings.models.max_model_len)
    samples = heldout_samples(stack, domain, target, tokens)
    most = settings.trainer.max_heldout_tokens
    examples, skipped = build_examples(samples, longest, len(tokenizer), most)
    if not examples:
        raise UsageError(f"domain {domain} has no held-out sample yet; send it traffic first")
    weights = ServingWeights(draft.module)
    measured = []
    for version in versions:
        adapter = None
        if version is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = stack.registry().download(domain, version, Path(folder) / "version")
                adapter = read_adapter(path, draft.module, draft.fingerprint, vocab_size=len(tokenizer))
        weights.apply(adapter)
        head_ids = draft.head_ids if adapter is None else adapter.head_ids
        scores = score(draft.module, examples, len(tokenizer), head_ids=head_ids)
        measured.append(Measured(version, report(examples, scores, skipped)))
    return measured


def heldout_samples(stack: Stack, domain: str, target: str, tokenizer: str) -> Iterator[Sample]:
    """The samples of the gate's own prompts, oldest first, as they are read."""
    from redraft_trainer.split import split

    trainer = stack.settings.trainer
    read = stack.stream().read(domain, None, None, expected_target=target, expected_tokenizer=tokenizer)
    parts = (trainer.holdout_percent, trainer.validation_percent)
    return (sample for _, sample in read if split(sample, *parts) == "heldout")


def paired_gain(before: MeasureReport, after: MeasureReport, confidence: float) -> Interval:
    """Gain of `after` over `before` on the same prompts; each end of the interval is one-sided at
    `confidence`.
    """
    from redraft_trainer.intervals import ratio_interval

    first, second = before.clusters(), after.clusters()
    shared = sorted(first.keys() & second.keys())
    differences = [second[key][1] - first[key][1] for key in shared]
    return ratio_interval(differences, [float(first[key][0]) for key in shared], 1.0 - confidence)
