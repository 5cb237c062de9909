"""What the training process does between its specification and its result."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from redraft_models.adapter import Adapter, adaptable_linears, read_adapter, save_adapter
from redraft_models.errors import AdapterRejected
from redraft_models.head import choose_head_ids
from redraft_models.loading import Draft, eos_token_ids, load_draft, resolve_device
from redraft_models.settings import ModelSettings
from redraft_queue.records import Sample
from torch import Tensor

from redraft_trainer.comparison import OWN, compare, serve_as
from redraft_trainer.data import Example, build_examples, some_of
from redraft_trainer.distil import Distilled, Progress, distil
from redraft_trainer.heads import IdCounts, heldout_coverage
from redraft_trainer.plan import part_file
from redraft_trainer.preparation import make_accelerator
from redraft_trainer.sample_files import read_samples
from redraft_trainer.settings import TrainerSettings
from redraft_trainer.split import Part

CANDIDATE = "candidate"
PACKAGES = ("torch", "transformers", "peft", "accelerate", "redraft")


def train(folder: Path, spec: dict[str, Any], tell: Progress) -> dict[str, Any] | None:
    """Distil and measure as `spec` says; the result of the first process, None in the others.

    Raises RoundFailed and what loading the models raises.
    """
    models, settings = ModelSettings(**spec["models"]), TrainerSettings(**spec["trainer"])
    torch.set_num_threads(spec["threads"])
    # A numbered GPU is the only one that this process sees, so it has another number here.
    device = resolve_device((settings.device or models.device).partition(":")[0])
    _limit_gpu_memory(device, settings)
    accelerator = make_accelerator(settings.mixed_precision, device)
    if accelerator.is_main_process:
        tell({"stage": "load", "pid": os.getpid()})
    draft, tokenizer = _load(models, Path(spec["cache_dir"]), accelerator)
    vocab_size = len(tokenizer)
    champion, champion_problem = _champion(spec, draft, vocab_size)
    counts = IdCounts(vocab_size)
    sets, skipped = _examples(folder, counts, vocab_size, models, settings, draft)
    head_ids = _head_ids(counts, draft, tokenizer, settings)
    goes_on = settings.start_from == "champion" and _same_shape(champion, settings, draft)
    start = champion if goes_on else None
    distilled = distil(
        draft.module,
        sets["train"],
        sets["validation"],
        settings,
        vocab_size=vocab_size,
        start=start,
        head_ids=head_ids,
        progress=tell,
        accelerator=accelerator,
    )
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return None
    facts = {**_training_facts(distilled), **_head_facts(head_ids, vocab_size, sets["heldout"])}
    provenance = {
        **spec["provenance"],
        **facts,
        "base_draft_fingerprint": draft.fingerprint,
    }
    provenance["started_from"] = start.version if start is not None else "base"
    sha256 = save_adapter(distilled.model, folder / CANDIDATE, provenance, head_ids=head_ids)
    distilled.model.unload()
    tell({"stage": "measure"})
    serve_as(draft, models.dtype)
    candidate = read_adapter(folder / CANDIDATE, draft.module, draft.fingerprint, vocab_size=vocab_size)
    heldout = {OWN: sets["heldout"], **_others(folder, spec, vocab_size, models, settings, draft)}
    measured = compare(draft, champion, candidate, heldout, vocab_size, tell)
    return {
        **facts,
        **measured,
        "sha256": sha256,
        "started_from": provenance["started_from"],
        "base_draft_fingerprint": draft.fingerprint,
        "champion_problem": champion_problem,
        "skipped": skipped,
        "steps": [[one.step, one.loss, one.learning_rate, one.grad_norm] for one in distilled.steps],
        "validation": [list(point) for point in distilled.validation],
    }


def _limit_gpu_memory(device: torch.device, settings: TrainerSettings) -> None:
    """More than the share is refused to this process, as if the device had no more."""
    if device.type == "cuda" and settings.gpu_memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(settings.gpu_memory_fraction, device)


def _load(models: ModelSettings, cache_dir: Path, accelerator: Accelerator) -> tuple[Draft, Any]:
    """The base draft in float32, whatever it is served in: an adapter is relative to the pristine weights.
    With the tokenizer.
    """
    settings = models.model_copy(update={"dtype": "float32", "device": "cpu"})
    draft, tokenizer, _, _ = load_draft(settings, cache_dir)
    draft.module.to(accelerator.device)
    return draft, tokenizer


def _champion(spec: dict[str, Any], draft: Draft, vocab_size: int) -> tuple[Adapter | None, str | None]:
    """The champion's adapter; where it can't be used, serving can't use it either, so the base is what
    counts.
    """
    champion = spec["champion"]
    if champion is None:
        return None, None
    problem, number = champion["problem"], champion["version"]
    try:
        if problem is None:
            folder = Path(champion["folder"])
            module, base = draft.module, draft.fingerprint
            return read_adapter(folder, module, base, version=number, vocab_size=vocab_size), None
    except AdapterRejected as error:
        problem = str(error)
    return None, f"version {number} can't be used ({problem}); the base draft stands for it"


def _same_shape(adapter: Adapter | None, settings: TrainerSettings, draft: Draft) -> bool:
    """Whether training can go on from an adapter: same rank and scale, on all layers that are trained."""
    if adapter is None or (adapter.r, adapter.lora_alpha) != (settings.rank, settings.lora_alpha):
        return False
    return set(adapter.target_modules) == adaptable_linears(draft.module).keys()


def _examples(
    folder: Path,
    counts: IdCounts,
    vocab_size: int,
    models: ModelSettings,
    settings: TrainerSettings,
    draft: Draft,
) -> tuple[dict[str, list[Example]], dict[str, int]]:
    """What this round looks at, and no more of it in memory, however long the range is. All training samples
    go into `counts`, and no others: a head that knew the held-out answers would measure too well.
    """
    window = min(models.max_model_len, draft.window or models.max_model_len)
    length = min(settings.max_sequence_length, window)
    sequences = settings.max_steps * settings.batch_size * settings.num_processes
    parts: dict[Part, tuple[int, int | None]] = {
        "train": (length, None),
        "validation": (length, settings.validation_tokens),
        "heldout": (window, settings.max_heldout_tokens),
    }
    sets: dict[str, list[Example]] = {}
    skipped: dict[str, int] = {}
    for part, (longest, most_tokens) in parts.items():
        samples: Iterable[Sample] = read_samples(part_file(folder, part))
        if part == "train":
            samples = some_of(counts.through(samples), sequences, settings.seed)
        sets[part], reasons = build_examples(samples, longest, vocab_size, most_tokens)
        skipped.update({f"{part}_{reason}": count for reason, count in reasons.items()})
    return sets, skipped


def _others(
    folder: Path,
    spec: dict[str, Any],
    vocab_size: int,
    models: ModelSettings,
    settings: TrainerSettings,
    draft: Draft,
) -> dict[str, list[Example]]:
    """Held-out examples of the domains that share the draft; those without any are left out."""
    window = min(models.max_model_len, draft.window or models.max_model_len)
    found = {
        domain: build_examples(read_samples(folder / name), window, vocab_size, settings.max_heldout_tokens)[
            0
        ]
        for domain, name in spec["other_domains"].items()
    }
    return {domain: examples for domain, examples in found.items() if examples}


def _training_facts(distilled: Distilled) -> dict[str, Any]:
    return {
        "best_step": distilled.best_step,
        "steps_taken": len(distilled.steps),
        "trained_tokens": distilled.trained_tokens,
        "precision_effective": distilled.precision_effective,
        "training_device": distilled.device,
        "training_seconds": round(distilled.seconds, 3),
        "packages": {name: version(name) for name in PACKAGES},
    }


def _head_ids(counts: IdCounts, draft: Draft, tokenizer: Any, settings: TrainerSettings) -> Tensor | None:
    ends = eos_token_ids(draft.module, tokenizer)
    head = choose_head_ids(counts.weights(), len(tokenizer), settings.head_size, ends)
    return None if head is None else head.ids


def _head_facts(head_ids: Tensor | None, vocab_size: int, heldout: list[Example]) -> dict[str, Any]:
    coverage = heldout_coverage(heldout, head_ids)
    return {
        "head_size": vocab_size if head_ids is None else len(head_ids),
        "head_coverage": None if coverage is None else round(coverage, 6),
    }
