"""Models small enough to be made anew: toy pairs, and adapters written for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import adaptable_linears, write_adapter
from redraft_models.reading import read_model

from .broken_adapters import BASE


@pytest.fixture
def random_draft(toy_pair: Callable[[str], tuple[Path, Path]]) -> Any:
    """A fresh copy of the random pair's draft: two layers, attention alive."""
    return read_model(toy_pair("random")[1], "toy")


@pytest.fixture
def random_tensors(random_draft: Any) -> Callable[[int], dict[str, torch.Tensor]]:
    """`random_tensors(seed)`: rank-4 LoRA pairs for every linear layer of the random draft."""

    def make(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for path, linear in adaptable_linears(random_draft).items():
            for part, size in (("A", (4, linear.in_features)), ("B", (linear.out_features, 4))):
                tensors[f"{path}.lora_{part}.weight"] = 0.1 * torch.randn(size, generator=generator)
        return tensors

    return make


@pytest.fixture
def adapter_folder(
    tmp_path: Path, random_draft: Any, random_tensors: Callable[[int], dict[str, torch.Tensor]]
) -> Callable[..., Path]:
    """`adapter_folder(seed)`: a whole adapter of the random draft on disk."""

    def make(seed: int = 1, name: str = "version", **changes: Any) -> Path:
        arguments = {
            "r": 4,
            "lora_alpha": 8.0,
            "target_modules": sorted(adaptable_linears(random_draft)),
            "provenance": {"base_draft_fingerprint": BASE},
        }
        write_adapter(tmp_path / name, random_tensors(seed), **{**arguments, **changes})
        return tmp_path / name

    return make
