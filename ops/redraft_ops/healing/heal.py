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
from redraft_models.loading import ModelPair
from redraft_queue.records import Sample
from redraft_trainer.data import build_examples, split
from redraft_trainer.distil import Distilled, distil
from redraft_trainer.settings import TrainerSettings

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
    seconds: float


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
    done = distil(cut, train, validation, settings, vocab_size=pair.vocab_size, progress=progress)
    return _write(pair, layers, done, len(samples), settings, out, made_with)


def _write(
    pair: ModelPair,
    layers: Sequence[int],
    done: Distilled,
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
        )
    size = sum(file.stat().st_size for file in (out / "adapter").iterdir())
    return Healed(recipe, before, after, samples, done.trained_tokens, size, done.seconds)
