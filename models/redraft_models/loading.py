"""Load the pair that is served, or the draft alone for training: checked, frozen, in eval mode.

The base draft that comes out of here is pristine: the registry's adapters are merged by `ServingWeights`, or
trained on by PEFT, never here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft_models.adapter_read import read_adapter
from redraft_models.checks import check_pair, check_target, vocabulary_size
from redraft_models.cut import cut_layers, heal
from redraft_models.draft_folder import DRAFT_FILE, LAYER_CUT, CutRecipe, read_draft_head, read_recipe
from redraft_models.dtypes import resolve_dtype, trained_dtype
from redraft_models.errors import AdapterRejected, IncompatiblePair, SourceError
from redraft_models.fingerprints import tokenizer_fingerprint, weights_fingerprint
from redraft_models.reading import read_config, read_model, read_tokenizer
from redraft_models.settings import ModelSettings
from redraft_models.sources import DEFAULT, resolve_source

NO_DRAFT = "none"
DEFAULT_DRAFT = "smollm2-135m-draft"


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and what it is."""

    module: Any
    """PreTrainedModel in eval mode; no parameter requires a gradient."""
    fingerprint: str
    source: str
    path: Path


@dataclass(frozen=True)
class Draft:
    """The pristine base draft."""

    module: Any
    """PreTrainedModel in eval mode. A layer cut shares embedding, final norm and head with its target."""
    fingerprint: str
    """The base draft fingerprint that adapters name."""
    source: str
    kind: str
    """layer-cut | model"""
    layers: tuple[int, ...] | None
    """Of the target, where the draft was cut from it."""
    head_ids: Tensor | None = None
    """int32 [S] on the CPU, ascending: the ids that the base draft's head scores (`laws.restrict`); None is
    the full head. An adapter brings its own.
    """

    @property
    def window(self) -> int | None:
        """Positions that the draft was made for; past them it can't propose. None: no limit is known."""
        window: int | None = getattr(self.module.config, "max_position_embeddings", None)
        return window


@dataclass(frozen=True)
class ModelPair:
    """What a serving worker holds. `draft` is None where speculation is off."""

    target: LoadedModel
    draft: Draft | None
    tokenizer: Any
    tokenizer_fingerprint: str
    vocab_size: int
    """Ids below this have a token; the models may score more rows, which are never drawn."""
    eos_token_ids: frozenset[int]
    max_model_len: int
    device: torch.device
    dtype: torch.dtype


def load_pair(settings: ModelSettings, cache_dir: Path) -> ModelPair:
    """Load target, draft and tokenizer, check that they fit, cast them to the settings' dtype and device.

    Raises SourceError where a model can't be found or read, and IncompatiblePair where the two can't serve
    together.
    """
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    target, tokenizer = _load_target(settings, cache_dir)
    wanted = settings.draft != NO_DRAFT
    draft = _load_draft(settings, cache_dir, target, tokenizer) if wanted else None
    _place(target.module, device, dtype)
    if draft is not None:
        _place(draft.module, device, dtype)
    return ModelPair(
        target=target,
        draft=draft,
        tokenizer=tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        vocab_size=vocabulary_size(tokenizer),
        eos_token_ids=eos_token_ids(target.module, tokenizer),
        max_model_len=settings.max_model_len,
        device=device,
        dtype=dtype,
    )


def load_draft(settings: ModelSettings, cache_dir: Path) -> tuple[Draft, Any, str, str]:
    """The pristine base draft alone, for training and measuring: the target's other weights are released.

    Answers (draft, tokenizer, target fingerprint, tokenizer fingerprint). Raises as `load_pair`, and
    SourceError where the settings name no draft.
    """
    if settings.draft == NO_DRAFT:
        raise SourceError('the draft is "none": there is nothing to train or to measure; set a draft')
    device, dtype = resolve_device(settings.device), trained_dtype(settings.dtype)
    target, tokenizer = _load_target(settings, cache_dir)
    draft = _load_draft(settings, cache_dir, target, tokenizer)
    _place(draft.module, device, dtype)
    return draft, tokenizer, target.fingerprint, tokenizer_fingerprint(tokenizer)


def resolve_device(name: str) -> torch.device:
    """The device of a setting; "auto" is cuda where there is one. Raises SourceError if it isn't here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise SourceError(f"device is {name} but {found} CUDA devices are here; set device to cpu or auto")
    return device


def _load_target(settings: ModelSettings, cache_dir: Path) -> tuple[LoadedModel, Any]:
    path = resolve_source(settings.target, cache_dir)
    tokenizer = read_tokenizer(path, settings.target)
    check_target(read_config(path, settings.target), tokenizer, settings.max_model_len)
    module = read_model(path, settings.target)
    return LoadedModel(module, weights_fingerprint(path), settings.target, path), tokenizer


def _load_draft(settings: ModelSettings, cache_dir: Path, target: LoadedModel, tokenizer: Any) -> Draft:
    source = settings.draft
    folder = _default_draft() if source == DEFAULT else Path(source).expanduser()
    if (folder / DRAFT_FILE).is_file():
        return _load_cut(folder, source, target, tokenizer)
    path = resolve_source(source, cache_dir)
    config, draft_tokenizer = read_config(path, source), read_tokenizer(path, source)
    check_pair(target.module.config, config, tokenizer, draft_tokenizer, settings.max_model_len)
    return Draft(read_model(path, source), weights_fingerprint(path), source, "model", None)


def _default_draft() -> Path:
    folder = Path(str(files("redraft_models"))) / "assets" / DEFAULT_DRAFT
    if not (folder / DRAFT_FILE).is_file():
        raise SourceError(
            "this installation carries no default draft; name one with --draft, "
            "or cut one from the target with `redraft init-draft`"
        )
    return folder


def _load_cut(folder: Path, source: str, target: LoadedModel, tokenizer: Any) -> Draft:
    recipe = read_recipe(folder)
    _check_recipe(recipe, source, target, tokenizer_fingerprint(tokenizer))
    module = cut_layers(target.module, recipe.layers)
    if recipe.adapter_sha256 is not None:
        _heal_from(folder, module, recipe, source)
    head_ids = read_draft_head(folder, recipe, vocabulary_size(tokenizer))
    return Draft(module, recipe.base_draft_fingerprint, source, LAYER_CUT, recipe.layers, head_ids)


def _heal_from(folder: Path, module: Any, recipe: CutRecipe, source: str) -> None:
    try:
        adapter = read_adapter(folder, module, recipe.unhealed_fingerprint)
    except AdapterRejected as error:
        raise SourceError(f"the healing adapter of draft {source} is not usable: {error}") from error
    if adapter.sha256 != recipe.adapter_sha256:
        raise SourceError(
            f"draft {source} names a healing adapter with sha256 {recipe.adapter_sha256}, its folder holds "
            f"{adapter.sha256}; make the draft again with `redraft init-draft`"
        )
    heal(module, adapter)


def _check_recipe(recipe: CutRecipe, source: str, target: LoadedModel, tokenizer_hash: str) -> None:
    for what, wanted, found in (
        ("weights", recipe.target_fingerprint, target.fingerprint),
        ("tokenizer", recipe.tokenizer_fingerprint, tokenizer_hash),
    ):
        if wanted != found:
            raise IncompatiblePair(
                f"draft {source} was cut from target {recipe.target} with {what} {wanted}, but target "
                f"{target.source} has {what} {found}; cut a draft from this target with `redraft init-draft`"
            )


@torch.no_grad()
def _place(module: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model, cast its weights. Buffers keep their dtype: bfloat16 rotary tables blur far positions."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(device, dtype)
    module.to(device)
    module.config.dtype = dtype


def eos_token_ids(module: Any, tokenizer: Any) -> frozenset[int]:
    """What ends an answer: a model's generation config says so, else its tokenizer."""
    ids = getattr(module.generation_config, "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
