"""Read an adapter folder that nobody vouches for: every check before a single weight is believed.

PEFT itself loads half an adapter, one of another base, or one full of NaN with at most a warning. JSON and
safetensors only: nothing here can run code from the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from redraft_models.errors import AdapterRejected, AdapterSpoilt
from redraft_models.head import HEAD_FILE, HEAD_SHA256, read_head
from redraft_models.lora import (
    ADAPTER_FOLDER,
    CONFIG_FILE,
    PEFT_PREFIX,
    PROVENANCE_FILE,
    WEIGHTS_FILE,
    Adapter,
    adaptable_linears,
)
from redraft_models.lora_config import LoraShape, parse_config

MAX_ADAPTER_BYTES = 1 << 30
MAX_JSON_BYTES = 1 << 20
"""A config or a provenance has a few thousand; parsed, JSON takes many times its own size."""
_ALLOWED_SUFFIXES = {".json", ".safetensors", ".md"}


def read_adapter(
    folder: Path,
    draft_module: Any,
    base_draft_fingerprint: str | None,
    max_bytes: int = MAX_ADAPTER_BYTES,
    version: int | None = None,
    vocab_size: int | None = None,
) -> Adapter:
    """Read and check the adapter in `folder` against the draft that it is meant for.

    `draft_module` gives the layers and shapes that the adapter has to fit; `base_draft_fingerprint` must
    equal the one in its provenance (None skips that check). `vocab_size` bounds the ids of a trimmed head;
    None is the rows of the draft's own, some of which may have no token. Raises AdapterRejected with the
    reason: files missing or foreign, links, size, a truncated file, another base, another LoRA variant, a key
    set other than the config implies, shapes, values that are not finite, ids that are none. Raises
    AdapterSpoilt for bytes other than the recorded ones, and for JSON that is none.
    """
    _check_files(folder, max_bytes)
    provenance = _read_json(folder / PROVENANCE_FILE)
    _check_base(provenance, base_draft_fingerprint)
    content = (folder / ADAPTER_FOLDER / WEIGHTS_FILE).read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if provenance.get("sha256") != sha256:
        raise AdapterSpoilt(
            f"{WEIGHTS_FILE} has sha256 {sha256}, its provenance says {provenance.get('sha256')}"
        )
    shape = parse_config(_read_json(folder / ADAPTER_FOLDER / CONFIG_FILE), adaptable_linears(draft_module))
    return Adapter(
        r=shape.r,
        lora_alpha=shape.lora_alpha,
        target_modules=tuple(sorted(shape.linears)),
        tensors=_checked_tensors(_parse(content), shape),
        sha256=sha256,
        provenance=provenance,
        version=version,
        head_ids=read_head(
            folder / ADAPTER_FOLDER / HEAD_FILE,
            provenance.get(HEAD_SHA256),
            vocab_size if vocab_size is not None else _head_rows(draft_module),
        ),
    )


def _head_rows(draft_module: Any) -> int:
    return int(draft_module.get_output_embeddings().weight.shape[0])


def _check_files(folder: Path, max_bytes: int) -> None:
    """Only known kinds of files, none of them a link, none missing, and no more than max_bytes in all."""
    if not folder.is_dir():
        raise AdapterRejected(f"there is no adapter folder {folder.name}")
    total = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise AdapterRejected(f"{name} is a link or a special file, which an adapter never holds")
        if path.is_file():
            if path.suffix not in _ALLOWED_SUFFIXES:
                raise AdapterRejected(
                    f"{name} is neither JSON nor safetensors; an adapter holds nothing else"
                )
            size = path.stat().st_size
            if path.suffix == ".json" and size > MAX_JSON_BYTES:
                raise AdapterRejected(f"{name} has {size} bytes, more than the {MAX_JSON_BYTES} allowed")
            total += size
    if total > max_bytes:
        raise AdapterRejected(f"the adapter has {total} bytes, more than the {max_bytes} allowed")
    needed = (f"{ADAPTER_FOLDER}/{CONFIG_FILE}", f"{ADAPTER_FOLDER}/{WEIGHTS_FILE}", PROVENANCE_FILE)
    missing = next((name for name in needed if not (folder / name).is_file()), None)
    if missing is not None:
        raise AdapterRejected(f"{missing} is missing")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise AdapterSpoilt(f"{path.name} is not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise AdapterRejected(f"{path.name} holds a JSON {type(content).__name__}, not an object")
    return content


def _check_base(provenance: Mapping[str, Any], expected: str | None) -> None:
    found = provenance.get("base_draft_fingerprint")
    if expected is not None and found != expected:
        raise AdapterRejected(f"the adapter belongs to base draft {found}, this draft is {expected}")


def _parse(content: bytes) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise AdapterRejected(f"{WEIGHTS_FILE} is not a whole safetensors file: {error}") from error
    return tensors


def _checked_tensors(found: dict[str, Tensor], shape: LoraShape) -> dict[str, Tensor]:
    expected = {f"{PEFT_PREFIX}{key}": size for key, size in shape.expected().items()}
    missing, foreign = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing:
        raise AdapterRejected(
            f"{len(missing)} of {len(expected)} tensors are missing, the first is {missing[0]}"
        )
    if foreign:
        raise AdapterRejected(
            f"{len(foreign)} tensors do not belong to this draft, the first is {foreign[0]}"
        )
    for key, tensor in sorted(found.items()):
        if tuple(tensor.shape) != expected[key]:
            raise AdapterRejected(
                f"{key} has shape {list(tensor.shape)}, this draft needs {list(expected[key])}"
            )
        if not tensor.is_floating_point() or not bool(tensor.to(torch.float32).isfinite().all()):
            raise AdapterRejected(f"{key} holds values that are not finite numbers")
    return {key.removeprefix(PEFT_PREFIX): tensor.to(torch.float32) for key, tensor in found.items()}
