"""Distil the target's answers into an adapter of the cut, and write the draft's folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from redraft_models.adapter import save_adapter
from redraft_models.cut import cut_layers
from redraft_models.draft_folder import CutRecipe, cut_fingerprint, write_draft_folder
from redraft_models.head import choose_head_ids
from redraft_models.loading import ModelPair
from redraft_queue.records import Sample
from redraft_trainer.data import Example, build_examples, split
from redraft_trainer.distil import Distilled, distil
from redraft_trainer.heads import IdCounts, heldout_coverage
from redraft_trainer.settings import TrainerSettings
from torch import Tensor

PACKAGES = ("torch", "transformers", "peft", "accelerate")


@dataclass(frozen=True)
class Healed:
    """A finished draft. Acceptance is measured on answers that were not trained on, before and after."""

    recipe: CutRecipe
    acceptance_before: float | None
    acceptance_after: float | None
    samples: int
    trained_tokens: int
    adapter_bytes: int
    head_size: int
    """Ids that the draft's head scores; the vocabulary where it isn't trimmed."""
    head_coverage: float | None
    """Share of the tokens of answers that were not trained on which these ids hold."""
    seconds: float


@dataclass(frozen=True)
class _Head:
    """The head of the draft, chosen from the answers that it is trained on."""

    ids: Tensor | None
    size: int
    coverage: float | None


def heal_cut(
    pair: ModelPair,
    layers: Sequence[int],
    samples: Sequence[Sample],
    settings: TrainerSettings,
    out: Path,
    made_with: Mapping[str, Any],
    progress: Callable[[dict[str, Any]], None],
) -> Healed:
    """Cut `layers` from the target, train an adapter of the cut on `samples`, write the draft into `out`.

    `made_with` goes into the provenance: the command and its numbers. Raises what `cut_layers`, `distil` and
    `write_draft_folder` raise.
    """
    cut = cut_layers(pair.target.module, layers)
    parts = {"train": [], "validation": []}  # type: dict[str, list[Sample]]
    for sample in samples:
        parts["train" if split(sample, 1, settings.validation_percent) == "train" else "validation"].append(
            sample
        )
    train, _ = build_examples(parts["train"], settings.max_sequence_length, pair.vocab_size)
    validation, _ = build_examples(parts["validation"], settings.max_sequence_length, pair.vocab_size)
    head = _head(pair, parts["train"], validation, settings.head_size)
    vocab_size = pair.vocab_size
    done = distil(
        cut, train, validation, settings, vocab_size=vocab_size, head_ids=head.ids, progress=progress
    )
    return _write(pair, layers, done, head, len(samples), settings, out, made_with)


def _head(pair: ModelPair, samples: Sequence[Sample], validation: Sequence[Example], size: int) -> _Head:
    counts = IdCounts(pair.vocab_size)
    for sample in samples:
        counts.add(sample)
    chosen = choose_head_ids(counts.weights(), pair.vocab_size, size, pair.eos_token_ids)
    ids = None if chosen is None else chosen.ids
    return _Head(ids, pair.vocab_size if ids is None else len(ids), heldout_coverage(validation, ids))


def _write(
    pair: ModelPair,
    layers: Sequence[int],
    done: Distilled,
    head: _Head,
    samples: int,
    settings: TrainerSettings,
    out: Path,
    made_with: Mapping[str, Any],
) -> Healed:
    curve = dict(done.validation)
    before, after = curve.get(0), curve.get(done.best_step)
    provenance = {
        "base_draft_fingerprint": cut_fingerprint(pair.target.fingerprint, layers, None),
        "target_fingerprint": pair.target.fingerprint,
        "tokenizer_fingerprint": pair.tokenizer_fingerprint,
        **made_with,
        "settings": settings.model_dump(mode="json"),
        "samples": samples,
        "trained_tokens": done.trained_tokens,
        "best_step": done.best_step,
        "head": {
            "ids": head.size,
            "chosen_from": "the answers trained on: tokens and logged law, then the lowest ids",
            "coverage_of_answers_not_trained_on": head.coverage,
        },
        "validation_acceptance": {str(step): round(value, 4) for step, value in done.validation},
        "precision_effective": done.precision_effective,
        "packages": {name: version(name) for name in PACKAGES},
    }
    with tempfile.TemporaryDirectory() as scratch:
        adapter = Path(scratch) / "healing"
        save_adapter(done.model, adapter, provenance, dtype=torch.bfloat16)
        recipe = write_draft_folder(
            out,
            target=pair.target.source,
            target_fingerprint=pair.target.fingerprint,
            tokenizer_fingerprint=pair.tokenizer_fingerprint,
            layers=layers,
            adapter_dir=adapter,
            head_ids=head.ids,
        )
    size = sum(file.stat().st_size for file in (out / "adapter").iterdir())
    return Healed(
        recipe=recipe,
        acceptance_before=before,
        acceptance_after=after,
        samples=samples,
        trained_tokens=done.trained_tokens,
        adapter_bytes=size,
        head_size=head.size,
        head_coverage=head.coverage,
        seconds=done.seconds,
    )
