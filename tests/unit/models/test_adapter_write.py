"""What PEFT trained is what we serve: written, read back, merged, and trained on from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from redraft_models.adapter import (
    ServingWeights,
    deltas,
    load_into_peft,
    read_adapter,
    save_adapter,
)
from redraft_models.errors import AdapterRejected
from redraft_models.reading import read_model

BASE = "base-draft-fingerprint"
IDS = torch.tensor([[3, 9, 27, 60, 12, 5]])
ToyPair = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def trained(toy_pair: ToyPair) -> Any:
    """A PEFT model over the random draft whose adapter does something."""
    draft = read_model(toy_pair("random")[1], "toy")
    config = peft.LoraConfig(
        r=4, lora_alpha=12, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(draft, config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0.0, 0.1, generator=generator)
    return model.eval()


def test_the_merged_draft_answers_as_peft_does(trained: Any, random_draft: Any, tmp_path: Path) -> None:
    sha256 = save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE, "seed": 0})
    adapter = read_adapter(tmp_path / "version", random_draft, BASE)
    assert adapter.sha256 == sha256 == adapter.provenance["sha256"]
    assert adapter.provenance["seed"] == 0
    with torch.no_grad():
        before = random_draft(IDS).logits
        ServingWeights(random_draft).apply(adapter)
        torch.testing.assert_close(random_draft(IDS).logits, trained(IDS).logits, rtol=1e-4, atol=1e-4)
        assert float((random_draft(IDS).logits - before).abs().max()) > 0.1


def test_deltas_are_those_of_peft(trained: Any, random_draft: Any, tmp_path: Path) -> None:
    save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE})
    found = deltas(read_adapter(tmp_path / "version", random_draft, BASE))
    layers = {name: module for name, module in trained.named_modules() if hasattr(module, "get_delta_weight")}
    assert len(found) == len(layers) == 14
    for name, layer in layers.items():
        path = name.removeprefix("base_model.model.")
        torch.testing.assert_close(found[f"{path}.weight"], layer.get_delta_weight("default"))


def test_peft_itself_can_load_the_folder(trained: Any, random_draft: Any, tmp_path: Path) -> None:
    save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE})
    loaded = peft.PeftModel.from_pretrained(random_draft, tmp_path / "version" / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, trained(IDS).logits)


def test_no_path_of_this_machine_is_stored(trained: Any, random_draft: Any, tmp_path: Path) -> None:
    trained.peft_config["default"].base_model_name_or_path = str(tmp_path / "draft")
    save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE})
    config = json.loads((tmp_path / "version" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == BASE
    for path in (tmp_path / "version").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes()


def test_half_precision_halves_the_file(trained: Any, random_draft: Any, tmp_path: Path) -> None:
    for name, dtype in (("full", torch.float32), ("half", torch.bfloat16)):
        save_adapter(trained, tmp_path / name, {"base_draft_fingerprint": BASE}, dtype=dtype)
    full, half = (
        (tmp_path / name / "adapter" / "adapter_model.safetensors").stat().st_size
        for name in ("full", "half")
    )
    assert half < 0.7 * full
    exact, rounded = (read_adapter(tmp_path / name, random_draft, BASE) for name in ("full", "half"))
    for name, tensor in exact.tensors.items():
        torch.testing.assert_close(rounded.tensors[name], tensor, rtol=0.01, atol=0.01)


def test_the_same_weights_have_the_same_sha256(trained: Any, tmp_path: Path) -> None:
    first = save_adapter(trained, tmp_path / "a", {"base_draft_fingerprint": BASE})
    assert save_adapter(trained, tmp_path / "b", {"base_draft_fingerprint": BASE}) == first


def test_a_folder_with_content_is_not_overwritten(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "version").mkdir()
    (tmp_path / "version" / "kept").write_text("content")
    with pytest.raises(OSError, match="not empty"):
        save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE})
    assert [path.name for path in tmp_path.rglob("*")] == ["version", "kept"]


def test_training_goes_on_from_an_adapter(trained: Any, toy_pair: ToyPair, tmp_path: Path) -> None:
    save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE})
    draft = read_model(toy_pair("random")[1], "toy")
    adapter = read_adapter(tmp_path / "version", draft, BASE)
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(draft, config).eval()
    load_into_peft(model, adapter)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, trained(IDS).logits)


@pytest.mark.parametrize(
    "changes", [{"r": 8}, {"lora_alpha": 4}, {"target_modules": ["q_proj", "v_proj"]}], ids=str
)
def test_training_with_other_settings_does_not_go_on(
    trained: Any, toy_pair: ToyPair, tmp_path: Path, changes: dict[str, Any]
) -> None:
    save_adapter(trained, tmp_path / "version", {"base_draft_fingerprint": BASE})
    draft = read_model(toy_pair("random")[1], "toy")
    adapter = read_adapter(tmp_path / "version", draft, BASE)
    settings = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **changes}
    with pytest.raises(AdapterRejected, match="training"):
        load_into_peft(peft.get_peft_model(draft, peft.LoraConfig(**settings)), adapter)
