"""An adapter that nobody vouches for: tensors and settings that are wrong are refused with their reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import adaptable_linears, read_adapter, write_adapter
from redraft_models.cut import cut_layers
from redraft_models.errors import AdapterRejected
from redraft_models.reading import read_model
from safetensors.torch import load_file

from .broken_adapters import BASE, AdapterFolder, configure, refusal, rewrite, weights_of


def test_a_whole_adapter_is_read(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    (folder / "adapter" / "README.md").write_text("written by PEFT")
    adapter = read_adapter(folder, random_draft, BASE, version=7)
    assert (adapter.r, adapter.lora_alpha, adapter.scale, adapter.version) == (4, 8.0, 2.0, 7)
    assert adapter.target_modules == tuple(sorted(adaptable_linears(random_draft)))
    assert len(adapter.tensors) == 2 * 7 * 2, "A and B of seven linear layers in each of two decoder layers"
    assert adapter.sha256 == hashlib.sha256(weights_of(folder).read_bytes()).hexdigest()
    assert adapter.provenance["base_draft_fingerprint"] == BASE
    assert all(t.dtype == torch.float32 for t in adapter.tensors.values())


def test_half_of_the_tensors_are_missing(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    tensors = load_file(weights_of(folder))
    rewrite(folder, dict(sorted(tensors.items())[::2]))
    assert "14 of 28 tensors are missing" in refusal(folder, random_draft)


def test_a_foreign_tensor(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    rewrite(
        folder,
        {**load_file(weights_of(folder)), "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)},
    )
    assert "1 tensors do not belong to this draft" in refusal(folder, random_draft)


def test_an_adapter_of_another_base(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1, provenance={"base_draft_fingerprint": "other"})
    assert refusal(folder, random_draft) == f"the adapter belongs to base draft other, this draft is {BASE}"
    assert read_adapter(folder, random_draft, None).r == 4, "without an expectation it isn't asked"


def test_an_adapter_of_a_deeper_or_shallower_draft(
    adapter_folder: AdapterFolder, toy_pair: Callable[[str], tuple[Path, Path]]
) -> None:
    """Every shape fits, and PEFT loads it with a warning at most."""
    target = read_model(toy_pair("random")[1], "toy")
    folder = adapter_folder(1)
    assert "matches no adaptable linear layer" in refusal(folder, cut_layers(target, [0]))
    configure(folder, target_modules="all-linear")
    assert "14 tensors do not belong to this draft" in refusal(folder, cut_layers(target, [0]))
    tensors = {name: tensor for name, tensor in load_file(weights_of(folder)).items() if ".layers.0." in name}
    rewrite(folder, tensors)
    assert "14 of 28 tensors are missing" in refusal(folder, target)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite(adapter_folder: AdapterFolder, random_draft: Any, value: float) -> None:
    folder = adapter_folder(1)
    tensors = load_file(weights_of(folder))
    tensors[max(tensors)][0, 0] = value
    rewrite(folder, tensors)
    assert "not finite" in refusal(folder, random_draft)


def test_tensors_of_integers(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    rewrite(folder, {name: tensor.to(torch.int32) for name, tensor in load_file(weights_of(folder)).items()})
    assert "not finite numbers" in refusal(folder, random_draft)


def test_another_shape(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    configure(folder, r=8)
    assert "down_proj.lora_A.weight has shape [4, 64], this draft needs [8, 64]" in refusal(
        folder, random_draft
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"peft_type": "LOHA"},
        {"task_type": "SEQ_CLS"},
        {"rank_pattern": {"q_proj": 8}},
        {"alpha_pattern": {"q_proj": 8}},
        {"layers_to_transform": [0]},
        {"exclude_modules": ["q_proj"]},
        {"fan_in_fan_out": True},
        {"init_lora_weights": "pissa_niter_4"},
        {"lora_bias": True},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["no_such_layer"]},
        {"target_modules": ".*"},
        {"target_modules": []},
        {"target_modules": None},
        {"target_modules": [1]},
        {"r": 0},
        {"r": "4"},
        {"r": True},
        {"r": None},
        {"lora_alpha": float("nan")},
        {"lora_alpha": 10**400},
        {"lora_alpha": "8"},
        {"lora_alpha": None},
    ],
)
def test_configs_that_are_not_plain_lora(
    adapter_folder: AdapterFolder, random_draft: Any, changes: dict[str, Any]
) -> None:
    folder = adapter_folder(1)
    configure(folder, **changes)
    name = next(iter(changes))
    assert name.replace("_", " ").rstrip("s") in refusal(folder, random_draft).replace("_", " ")


def test_all_linear_and_suffixes_mean_the_same_layers(
    adapter_folder: AdapterFolder, random_draft: Any
) -> None:
    expected = read_adapter(adapter_folder(1), random_draft, BASE).target_modules
    suffixes = sorted({path.rsplit(".", 1)[-1] for path in expected})
    for number, targets in enumerate(("all-linear", suffixes)):
        folder = adapter_folder(1, name=f"other{number}")
        configure(folder, target_modules=targets, task_type=None)
        assert read_adapter(folder, random_draft, BASE).target_modules == expected


def test_nothing_is_written_for_a_trained_adapter_that_is_not_finite(
    tmp_path: Path, random_draft: Any, random_tensors: Callable[[int], dict[str, torch.Tensor]]
) -> None:
    tensors = random_tensors(1)
    tensors[max(tensors)][0, 0] = float("nan")
    with pytest.raises(AdapterRejected, match="nothing was written"):
        write_adapter(
            tmp_path / "version",
            tensors,
            r=4,
            lora_alpha=8,
            target_modules=sorted(adaptable_linears(random_draft)),
            provenance={"base_draft_fingerprint": BASE},
        )
    assert list(tmp_path.iterdir()) == []
