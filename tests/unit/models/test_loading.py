"""Pairs from folders: checked, frozen, placed; and refused in one sentence where they don't fit."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from redraft_models import loading
from redraft_models.adapter import adaptable_linears, write_adapter
from redraft_models.cut import cut_fingerprint, cut_layers, write_draft_folder
from redraft_models.draft_folder import set_draft_head
from redraft_models.errors import IncompatiblePair, SourceError
from redraft_models.fingerprints import tokenizer_fingerprint, weights_fingerprint
from redraft_models.loading import load_draft, load_pair, resolve_device
from redraft_models.reading import read_model, read_tokenizer
from redraft_models.settings import ModelSettings
from redraft_models.toy import write_toy_pair

ToyPair = Callable[[str], tuple[Path, Path]]
IDS = torch.tensor([[3, 9, 27, 60, 12, 5]])


def settings(target: Path, draft: Path | str, **changes: Any) -> ModelSettings:
    return ModelSettings(**{"target": str(target), "draft": str(draft), "device": "cpu", **changes})


@pytest.fixture
def healed(toy_pair: ToyPair, tmp_path: Path) -> tuple[Path, Path]:
    """The random target, and a draft of its last layer with a healing adapter."""
    target = toy_pair("random")[0]
    fingerprint = weights_fingerprint(target)
    cut = cut_layers(read_model(target, "toy"), [1])
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for path, linear in adaptable_linears(cut).items():
        tensors[f"{path}.lora_A.weight"] = 0.1 * torch.randn(2, linear.in_features, generator=generator)
        tensors[f"{path}.lora_B.weight"] = 0.1 * torch.randn(linear.out_features, 2, generator=generator)
    write_adapter(
        tmp_path / "healing",
        tensors,
        r=2,
        lora_alpha=4,
        target_modules=sorted(adaptable_linears(cut)),
        provenance={"base_draft_fingerprint": cut_fingerprint(fingerprint, [1], None)},
    )
    write_draft_folder(
        tmp_path / "draft",
        target=str(target),
        target_fingerprint=fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(read_tokenizer(target, "toy")),
        layers=[1],
        adapter_dir=tmp_path / "healing",
    )
    return target, tmp_path / "draft"


def test_a_pair_of_folders(toy_pair: ToyPair, tmp_path: Path) -> None:
    target, draft = toy_pair("table")
    pair = load_pair(settings(target, draft, max_model_len=128), tmp_path)
    assert pair.draft is not None
    assert (pair.vocab_size, pair.eos_token_ids, pair.max_model_len) == (8, frozenset({1}), 128)
    assert (pair.draft.kind, pair.draft.layers, pair.draft.window) == ("model", None, 4096)
    assert pair.target.fingerprint == weights_fingerprint(target) != pair.draft.fingerprint
    assert pair.tokenizer_fingerprint == tokenizer_fingerprint(pair.tokenizer)
    for module in (pair.target.module, pair.draft.module):
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())


def test_padded_rows_do_not_count_as_vocabulary(tmp_path: Path) -> None:
    pair = load_pair(settings(*write_toy_pair(tmp_path, "table", padded_rows=8)), tmp_path)
    assert (pair.vocab_size, pair.target.module.config.vocab_size) == (8, 16)


def test_no_draft_is_a_normal_state(toy_pair: ToyPair, tmp_path: Path) -> None:
    config = settings(toy_pair("table")[0], "none")
    assert load_pair(config, tmp_path).draft is None
    with pytest.raises(SourceError, match="nothing to train"):
        load_draft(config, tmp_path)


def test_target_and_draft_from_one_folder_are_two_models(toy_pair: ToyPair, tmp_path: Path) -> None:
    target = toy_pair("random")[0]
    pair = load_pair(settings(target, target), tmp_path)
    assert pair.draft is not None
    assert pair.draft.fingerprint == pair.target.fingerprint
    pair.draft.module.lm_head.weight.zero_()
    assert bool(pair.target.module.lm_head.weight.any())


@torch.no_grad()
def test_a_healed_cut(healed: tuple[Path, Path], tmp_path: Path) -> None:
    target, folder = healed
    pair = load_pair(settings(*healed), tmp_path)
    assert pair.draft is not None
    sha256 = json.loads((folder / "draft.json").read_text())["adapter_sha256"]
    assert pair.draft.fingerprint == cut_fingerprint(pair.target.fingerprint, [1], sha256)
    assert (pair.draft.kind, pair.draft.layers) == ("layer-cut", (1,))
    assert pair.draft.module.lm_head.weight is pair.target.module.lm_head.weight
    assert pair.draft.module.model.embed_tokens is pair.target.module.model.embed_tokens
    pristine = read_model(target, "toy")
    assert torch.equal(pair.target.module(IDS).logits, pristine(IDS).logits)
    unhealed = cut_layers(pristine, [1])(IDS).logits
    assert float((pair.draft.module(IDS).logits - unhealed).abs().max()) > 0.01


def test_a_base_draft_brings_its_head(healed: tuple[Path, Path], tmp_path: Path) -> None:
    """The head is kept apart from weights and fingerprint; a broken one stops the start, in words."""
    full, *_ = load_draft(settings(*healed), tmp_path)
    assert full.head_ids is None
    head = torch.tensor([0, 1, 5, 63], dtype=torch.int32)
    set_draft_head(healed[1], head, {})
    trimmed = load_pair(settings(*healed), tmp_path).draft
    assert trimmed is not None
    assert trimmed.head_ids is not None
    assert torch.equal(trimmed.head_ids, head)
    assert trimmed.fingerprint == full.fingerprint
    assert torch.equal(trimmed.module(IDS).logits, full.module(IDS).logits)
    (healed[1] / "head.safetensors").write_bytes(b"rotten")
    with pytest.raises(SourceError, match="trimmed head of draft"):
        load_draft(settings(*healed), tmp_path)


def test_healing_is_merged_before_the_cast(healed: tuple[Path, Path], tmp_path: Path) -> None:
    exact = load_pair(settings(*healed), tmp_path).draft
    rounded = load_pair(settings(*healed, dtype="bfloat16"), tmp_path).draft
    assert exact is not None
    assert rounded is not None
    for (name, one), other in zip(exact.module.named_parameters(), rounded.module.parameters(), strict=True):
        assert torch.equal(one.to(torch.bfloat16), other), name
    assert exact.fingerprint == rounded.fingerprint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_cast_and_rotary_tables_are_not(
    healed: tuple[Path, Path], tmp_path: Path, dtype: str
) -> None:
    pair = load_pair(settings(*healed, dtype=dtype), tmp_path)
    assert pair.draft is not None
    for module in (pair.target.module, pair.draft.module):
        assert {parameter.dtype for parameter in module.parameters()} == {getattr(torch, dtype)}
        assert module.model.rotary_emb.inv_freq.dtype == torch.float32
        assert module(IDS).logits.isfinite().all()
    assert pair.draft.module.lm_head.weight is pair.target.module.lm_head.weight


def test_the_draft_alone_is_the_draft_of_the_pair(
    healed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_pair(settings(*healed), tmp_path)
    released: list[weakref.ref[Any]] = []

    def watch(path: Path, source: str) -> Any:
        module = read_model(path, source)
        released.append(weakref.ref(module.model.layers[0].mlp.up_proj.weight))
        return module

    monkeypatch.setattr(loading, "read_model", watch)
    draft, tokenizer, target_fingerprint, tokenizer_hash = load_draft(settings(*healed), tmp_path)
    assert pair.draft is not None
    assert draft.fingerprint == pair.draft.fingerprint
    assert target_fingerprint == pair.target.fingerprint
    assert tokenizer_hash == pair.tokenizer_fingerprint
    assert len(tokenizer) == pair.vocab_size
    with torch.no_grad():
        assert torch.equal(draft.module(IDS).logits, pair.draft.module(IDS).logits)
    gc.collect()
    assert released[0]() is None, "the target's layers are released"


def test_a_cut_of_another_target(healed: tuple[Path, Path], tmp_path: Path) -> None:
    other, _ = write_toy_pair(tmp_path / "other", "random", seed=9)
    with pytest.raises(IncompatiblePair) as caught:
        load_pair(settings(other, healed[1]), tmp_path)
    for value in (weights_fingerprint(healed[0]), weights_fingerprint(other), "redraft init-draft"):
        assert value in str(caught.value)


def test_a_cut_whose_healing_adapter_was_replaced(healed: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = healed[1] / "draft.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "adapter_sha256": "0" * 64}))
    with pytest.raises(SourceError, match="names a healing adapter with sha256 0000"):
        load_pair(settings(*healed), tmp_path)


def test_a_cut_whose_healing_adapter_is_rotten(healed: tuple[Path, Path], tmp_path: Path) -> None:
    weights = healed[1] / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(SourceError, match=r"healing adapter of draft .* is not usable"):
        load_pair(settings(*healed), tmp_path)


def test_another_tokenizer_is_refused(tmp_path: Path, toy_pair: ToyPair) -> None:
    with pytest.raises(IncompatiblePair, match="differ at token id 3: 'w0' in the target, 'a' in the draft"):
        load_pair(settings(toy_pair("table")[0], toy_pair("chain")[1]), tmp_path)


def test_a_window_that_is_too_small_is_refused_before_the_weights_are_read(
    tmp_path: Path, toy_pair: ToyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "read_model", None)
    with pytest.raises(IncompatiblePair, match="max_model_len is 9999 but the target's window has 4096"):
        load_pair(settings(*toy_pair("table"), max_model_len=9999), tmp_path)


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_broken_file_is_one_sentence(tmp_path: Path, toy_pair: ToyPair, broken: str, role: str) -> None:
    folders = {}
    for name, folder in zip(("target", "draft"), toy_pair("table"), strict=True):
        folders[name] = Path(shutil.copytree(folder, tmp_path / name))
    (folders[role] / broken).write_bytes(b"{")
    with pytest.raises(SourceError) as caught:
        load_pair(settings(**folders), tmp_path)
    assert "\n" not in str(caught.value)


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path, toy_pair: ToyPair) -> None:
    target = Path(shutil.copytree(toy_pair("table")[0], tmp_path / "target"))
    path = target / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [1, 5]}))
    assert load_pair(settings(target, "none"), tmp_path).eos_token_ids == {1, 5}


def test_without_a_shipped_draft_the_default_says_so(
    tmp_path: Path, toy_pair: ToyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "DEFAULT_DRAFT", "none-such")
    with pytest.raises(SourceError, match="carries no default draft"):
        load_pair(settings(toy_pair("table")[0], "default"), tmp_path)


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda")
    with pytest.raises(SourceError, match="CUDA devices are here"):
        resolve_device(f"cuda:{torch.cuda.device_count()}")


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "int8"}, {"device": "tpu"}, {"max_model_len": 0}, {"target": ""}, {"unknown": 1}],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings(**changes)
