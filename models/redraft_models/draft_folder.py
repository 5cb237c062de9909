"""The folder of a draft that is cut from its target: it holds none of the target's weights.

`draft.json` names the layers, and the fingerprint of the target that they are taken from; `adapter/` and
`provenance.json`, where present, are the healing adapter of that cut; `head.safetensors`, where present, the
ids that its head scores.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from redraft_models.errors import AdapterRejected, SourceError
from redraft_models.head import HEAD_FILE, read_head, write_head
from redraft_models.lora import ADAPTER_FOLDER, PROVENANCE_FILE

DRAFT_FILE = "draft.json"
LAYER_CUT = "layer-cut"


@dataclass(frozen=True)
class CutRecipe:
    """The content of draft.json."""

    target: str
    """Where the target came from ("default", hub id, folder name), for people; the fingerprint decides."""
    target_fingerprint: str
    tokenizer_fingerprint: str
    layers: tuple[int, ...]
    adapter_sha256: str | None = None
    kind: str = LAYER_CUT
    head_sha256: str | None = None
    """Of `head.safetensors`; None is a full head. It is no part of a fingerprint: an adapter adds to weights
    that no head changes, so what was trained on a base draft stays valid when that one's head is trimmed.
    """

    @property
    def unhealed_fingerprint(self) -> str:
        """Fingerprint of the bare cut: what a healing adapter's provenance names as its base."""
        return cut_fingerprint(self.target_fingerprint, self.layers, None)

    @property
    def base_draft_fingerprint(self) -> str:
        """Fingerprint of the healed cut: what every adapter of this draft names as its base."""
        return cut_fingerprint(self.target_fingerprint, self.layers, self.adapter_sha256)


def cut_fingerprint(target_fingerprint: str, layers: Sequence[int], adapter_sha256: str | None) -> str:
    """sha256 of the recipe, not of computed weights: those depend on a machine's rounding and the dtype."""
    recipe = json.dumps([LAYER_CUT, target_fingerprint, list(layers), adapter_sha256])
    return hashlib.sha256(recipe.encode()).hexdigest()


def read_recipe(folder: Path) -> CutRecipe:
    """Read draft.json. Raises SourceError where it isn't a layer cut's."""
    try:
        content = json.loads((folder / DRAFT_FILE).read_bytes())
        recipe = CutRecipe(**{**content, "layers": tuple(int(layer) for layer in content["layers"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{folder / DRAFT_FILE} is not the description of a draft: {error}") from error
    if recipe.kind != LAYER_CUT:
        raise SourceError(f"{folder / DRAFT_FILE} describes a {recipe.kind!r}; only {LAYER_CUT!r} is known")
    return recipe


def read_draft_head(folder: Path, recipe: CutRecipe, vocab_size: int) -> Tensor | None:
    """The ids that a draft's head scores, int32 [S]; None is the full head. Raises SourceError."""
    try:
        return read_head(folder / HEAD_FILE, recipe.head_sha256, vocab_size)
    except AdapterRejected as error:
        raise SourceError(f"the trimmed head of draft {folder.name} is not usable: {error}") from error


def write_draft_folder(
    out: Path,
    *,
    target: str,
    target_fingerprint: str,
    tokenizer_fingerprint: str,
    layers: Sequence[int],
    adapter_dir: Path | None = None,
    provenance: Mapping[str, Any] | None = None,
    head_ids: Tensor | None = None,
) -> CutRecipe:
    """Write a layer-cut draft into `out`, which must be absent or empty; it appears whole.

    `adapter_dir` is an adapter folder as `save_adapter` writes it, relative to the unhealed cut. `provenance`
    adds to the adapter's. `head_ids` (int32 [S], ascending) are the ids that the draft's head scores; None is
    the full head. Raises SourceError where `out` already holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SourceError(f"{out} is not empty; name a new folder for the draft")
    known = json.loads((adapter_dir / PROVENANCE_FILE).read_bytes()) if adapter_dir else {}
    recipe = CutRecipe(
        _portable(target), target_fingerprint, tokenizer_fingerprint, tuple(layers), known.get("sha256")
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        if adapter_dir:
            shutil.copytree(adapter_dir / ADAPTER_FOLDER, unfinished / ADAPTER_FOLDER)
        if adapter_dir or provenance:
            _write_json(unfinished / PROVENANCE_FILE, {**(provenance or {}), **known})
        if head_ids is not None:
            recipe = replace(recipe, head_sha256=write_head(unfinished / HEAD_FILE, head_ids))
        _write_json(unfinished / DRAFT_FILE, asdict(recipe))
        unfinished.chmod(0o755)
        unfinished.replace(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return recipe


def set_draft_head(folder: Path, head_ids: Tensor, made: Mapping[str, Any]) -> CutRecipe:
    """Trim the head of the draft in `folder` to `head_ids` (int32 [S], ascending); its fingerprint stays.

    `made` says in provenance.json, under "head", how the ids came about. Raises SourceError where `folder`
    isn't a draft's.
    """
    recipe = read_recipe(folder)
    path = folder / PROVENANCE_FILE
    known = json.loads(path.read_bytes()) if path.is_file() else {}
    unfinished = folder / f".{HEAD_FILE}"
    recipe = replace(recipe, head_sha256=write_head(unfinished, head_ids))
    unfinished.replace(folder / HEAD_FILE)
    _write_json(path, {**known, "head": dict(made)})
    _write_json(folder / DRAFT_FILE, asdict(recipe))
    return recipe


def _portable(target: str) -> str:
    """A local folder by its name: its path means nothing elsewhere, and the fingerprint identifies it."""
    path = Path(target).expanduser()
    return path.resolve().name if path.exists() else target


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
