"""Versions made by hand: adapters of the toy draft, whole or rotten in one way each."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from redraft_models.adapter import adaptable_linears, write_adapter
from redraft_models.loading import load_pair
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from safetensors.torch import load_file, save_file

RANK, ALPHA, SCALE = 4, 8.0, 0.1
KEPT_BYTES = 500
ROTTEN = ("truncated", "not a number", "wrong key", "pickle")


@dataclass
class Adapters:
    """Makes versions for the draft of a pair."""

    pair: tuple[Path, Path]
    folder: Path

    def __post_init__(self) -> None:
        target, draft = self.pair
        settings = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=256)
        found = load_pair(settings, self.folder / "cache").draft
        assert found is not None
        self.fingerprint = found.fingerprint
        self.linears = adaptable_linears(found.module)

    def register(
        self,
        registry: Registry,
        seed: int,
        fault: str = "",
        domain: str = "default",
        tags: Mapping[str, object] | None = None,
    ) -> int:
        """Register the adapter of a seed; `fault` is one of ROTTEN, `tags` are more tags of the version."""
        place = self.folder / f"{domain}-{seed}"
        provenance = {"base_draft_fingerprint": self.fingerprint}
        tensors = self._tensors(seed)
        sha = write_adapter(
            place,
            tensors,
            r=RANK,
            lora_alpha=ALPHA,
            target_modules=sorted(self.linears),
            provenance=provenance,
        )
        sha = _spoil(place, fault) or sha
        name = uuid.uuid4().hex
        run_id = registry.start_run(domain, f"by hand {seed}", {}, {"round_id": name})
        registry.log_artifacts(run_id, place, "version")
        shutil.rmtree(place)
        version = registry.register(domain, run_id, {"sha256": sha, **(tags or {})})
        registry.end_run(run_id, "FINISHED")
        return version

    def _tensors(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for path, linear in self.linears.items():
            shapes = {"lora_A": (RANK, linear.in_features), "lora_B": (linear.out_features, RANK)}
            for name, shape in shapes.items():
                tensors[f"{path}.{name}.weight"] = SCALE * torch.randn(shape, generator=generator)
        return tensors


def _spoil(place: Path, fault: str) -> str | None:
    """Ruin the files; returns the weights' new hash, which tag and provenance claim, so that only the content
    tells.
    """
    weights = place / "adapter" / "adapter_model.safetensors"
    if fault == "pickle":
        (place / "adapter" / "adapter_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")
    if fault in ("", "pickle"):
        return None
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:KEPT_BYTES])
    else:
        tensors = load_file(weights)
        first = sorted(tensors)[0]
        if fault == "not a number":
            tensors[first][0, 0] = float("nan")
        else:
            tensors[f"{first}.of_another_model"] = tensors.pop(first)
        save_file(tensors, weights)
    sha = hashlib.sha256(weights.read_bytes()).hexdigest()
    provenance = place / "provenance.json"
    provenance.write_text(json.dumps({**json.loads(provenance.read_text()), "sha256": sha}))
    return sha
