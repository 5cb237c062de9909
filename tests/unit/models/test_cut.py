"""A draft cut from its target: the right layers, shared ends, a folder without weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import read_adapter
from redraft_models.cut import (
    cut_fingerprint,
    cut_layers,
    heal,
    read_recipe,
    write_draft_folder,
)
from redraft_models.draft_folder import read_draft_head, set_draft_head
from redraft_models.errors import IncompatiblePair, SourceError
from redraft_models.reading import read_model
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config
from transformers import Qwen2ForCausalLM as Qwen2

IDS = torch.tensor([[3, 9, 27, 60, 12, 5]])
BASE = "base-draft-fingerprint"


@pytest.fixture(scope="module")
def target() -> Any:
    """Six layers, embedding and head tied."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).requires_grad_(False).eval()


def by_hand(target: Any, layers: list[int]) -> Any:
    """The same cut, made from a whole copy."""
    copied = copy.deepcopy(target)
    copied.model.layers = torch.nn.ModuleList(copied.model.layers[index] for index in layers)
    for index, layer in enumerate(copied.model.layers):
        layer.self_attn.layer_idx = index
    copied.config.num_hidden_layers = len(layers)
    return copied


@pytest.mark.parametrize("layers", [[0, 1, 5], [3], [0, 1, 2, 3, 4, 5]])
@torch.no_grad()
def test_a_cut_answers_as_the_target_without_the_other_layers(target: Any, layers: list[int]) -> None:
    cut = cut_layers(target, layers)
    assert torch.equal(cut(IDS).logits, by_hand(target, layers)(IDS).logits)
    if len(layers) == 6:
        assert torch.equal(cut(IDS).logits, target(IDS).logits)


@torch.no_grad()
def test_a_cut_works_with_a_cache(target: Any) -> None:
    """Wrong layer indices would write two layers into one place of the cache."""
    cut = cut_layers(target, [0, 2, 5])
    cache = DynamicCache(config=cut.config)
    parts = [cut(IDS[:, :4], cache=cache).logits, cut(IDS[:, 4:], cache=cache).logits]
    torch.testing.assert_close(torch.cat(parts, 1), cut(IDS).logits)
    assert len(cache.layers) == 3


def test_ends_are_shared_and_layers_are_not(target: Any) -> None:
    cut = cut_layers(target, [1, 5])
    assert cut.lm_head is target.lm_head
    assert cut.lm_head.weight is cut.model.embed_tokens.weight is target.model.embed_tokens.weight
    assert cut.model.norm is target.model.norm
    own = {id(parameter) for parameter in cut.model.layers.parameters()}
    assert not own & {id(parameter) for parameter in target.parameters()}
    pointers = {parameter.data_ptr() for parameter in cut.model.layers.parameters()}
    assert not pointers & {parameter.data_ptr() for parameter in target.parameters()}


def test_a_cut_is_frozen_whole_and_in_eval_mode(target: Any) -> None:
    cut = cut_layers(target, [1, 5])
    assert not cut.training
    assert not any(parameter.requires_grad for parameter in cut.parameters())
    assert not any(tensor.is_meta for tensor in (*cut.parameters(), *cut.buffers()))
    assert (cut.config.num_hidden_layers, target.config.num_hidden_layers) == (2, 6)
    assert len(target.model.layers) == 6


def test_a_cut_of_a_shorter_dtype_is_float32_for_healing(target: Any) -> None:
    cut = cut_layers(copy.deepcopy(target).to(torch.bfloat16), [0])
    assert {parameter.dtype for parameter in cut.model.layers.parameters()} == {torch.float32}


@torch.no_grad()
def test_settings_per_layer_are_cut_along(target: Any) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=4,
        use_sliding_window=True,
        initializer_range=0.3,
    )
    cut = cut_layers(Qwen2(config).eval(), [0, 3])
    assert cut.config.layer_types == ["full_attention", "sliding_attention"]
    assert cut(IDS).logits.isfinite().all()


@pytest.mark.parametrize("layers", [[], [6], [-1, 2], [1, 1], [2, 1]])
def test_layers_that_are_not_there(target: Any, layers: list[int]) -> None:
    with pytest.raises(IncompatiblePair, match="rising numbers from 0 to 5"):
        cut_layers(target, layers)


def test_a_target_that_is_not_llama_like() -> None:
    other = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(IncompatiblePair, match="GPT2LMHeadModel is not Llama-like"):
        cut_layers(other, [0])


def test_healing_changes_the_cut_and_not_the_target(
    toy_pair: Callable[[str], tuple[Path, Path]], adapter_folder: Callable[..., Path]
) -> None:
    target = read_model(toy_pair("random")[0], "toy")
    before = {name: parameter.clone() for name, parameter in target.named_parameters()}
    cut = cut_layers(target, [0, 1])
    heal(cut, read_adapter(adapter_folder(1), cut, BASE))
    assert not torch.equal(
        cut.model.layers[0].mlp.up_proj.weight, before["model.layers.0.mlp.up_proj.weight"]
    )
    assert all(torch.equal(parameter, before[name]) for name, parameter in target.named_parameters())


def test_a_fingerprint_tells_target_layers_and_healing_apart() -> None:
    found = {
        cut_fingerprint("t", [0, 1], None),
        cut_fingerprint("u", [0, 1], None),
        cut_fingerprint("t", [0, 2], None),
        cut_fingerprint("t", [0, 1], "a"),
        cut_fingerprint("t", [0, 1], "b"),
    }
    assert len(found) == 5
    assert cut_fingerprint("t", (0, 1), None) in found


def test_a_draft_folder_comes_back_as_written(tmp_path: Path, adapter_folder: Callable[..., Path]) -> None:
    folder = adapter_folder(1, provenance={"base_draft_fingerprint": BASE, "steps": 3})
    written = write_draft_folder(
        tmp_path / "draft",
        target=str(tmp_path),
        target_fingerprint="t",
        tokenizer_fingerprint="k",
        layers=[0, 1],
        adapter_dir=folder,
        provenance={"command": "redraft init-draft", "sha256": "of something else"},
    )
    recipe = read_recipe(tmp_path / "draft")
    assert recipe == written
    assert recipe.layers == (0, 1)
    assert recipe.target == tmp_path.name, "a path of this machine is not stored"
    provenance = json.loads((tmp_path / "draft" / "provenance.json").read_text())
    assert provenance["command"] == "redraft init-draft"
    assert provenance["steps"] == 3
    assert provenance["sha256"] == recipe.adapter_sha256
    assert recipe.base_draft_fingerprint == cut_fingerprint("t", [0, 1], recipe.adapter_sha256)
    assert recipe.unhealed_fingerprint == cut_fingerprint("t", [0, 1], None)
    assert not list((tmp_path / "draft").glob("*.safetensors")), "no weights of the target"


def test_a_trimmed_head_leaves_the_fingerprint_alone(tmp_path: Path) -> None:
    """Adapters name the fingerprint: those of a draft must stay valid when its head is trimmed."""
    settings = {"target": "default", "target_fingerprint": "t", "tokenizer_fingerprint": "k", "layers": [0]}
    full = write_draft_folder(tmp_path / "full", **settings, provenance={"steps": 3})
    head = torch.tensor([0, 2, 7], dtype=torch.int32)
    trimmed = write_draft_folder(tmp_path / "trimmed", **settings, head_ids=head)
    assert trimmed.base_draft_fingerprint == full.base_draft_fingerprint
    assert trimmed.unhealed_fingerprint == full.unhealed_fingerprint
    assert read_draft_head(tmp_path / "full", full, 8) is None
    found = read_draft_head(tmp_path / "trimmed", read_recipe(tmp_path / "trimmed"), 8)
    assert found is not None
    assert torch.equal(found, head)

    later = set_draft_head(tmp_path / "full", head, {"ids": 3})
    assert later == read_recipe(tmp_path / "full") == trimmed
    provenance = json.loads((tmp_path / "full" / "provenance.json").read_text())
    assert provenance == {"steps": 3, "head": {"ids": 3}}
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == [
        "draft.json",
        "head.safetensors",
        "provenance.json",
    ]


def test_a_descriptions_head_is_checked(tmp_path: Path) -> None:
    settings = {"target": "default", "target_fingerprint": "t", "tokenizer_fingerprint": "k", "layers": [0]}
    head = torch.tensor([0, 2, 7], dtype=torch.int32)
    recipe = write_draft_folder(tmp_path / "draft", **settings, head_ids=head)
    with pytest.raises(SourceError, match="outside of a vocabulary of 7"):
        read_draft_head(tmp_path / "draft", recipe, 7)
    (tmp_path / "draft" / "head.safetensors").unlink()
    with pytest.raises(SourceError, match="trimmed head of draft draft is not usable"):
        read_draft_head(tmp_path / "draft", recipe, 8)


def test_a_draft_folder_never_replaces_another(tmp_path: Path) -> None:
    settings = {"target": "default", "target_fingerprint": "t", "tokenizer_fingerprint": "k", "layers": [0]}
    write_draft_folder(tmp_path / "draft", **settings)
    with pytest.raises(SourceError, match="is not empty"):
        write_draft_folder(tmp_path / "draft", **settings)
    assert read_recipe(tmp_path / "draft").target == "default"
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not the description of a draft"),
        ("[]", "not the description of a draft"),
        ("{}", "not the description of a draft"),
        ('{"layers": ["x"]}', "not the description of a draft"),
        ('{"layers": [0], "unknown": 1}', "not the description of a draft"),
        (
            '{"kind": "medusa", "target": "", "target_fingerprint": "", '
            '"tokenizer_fingerprint": "", "layers": []}',
            "'medusa'; only 'layer-cut' is known",
        ),
    ],
)
def test_descriptions_that_are_none(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "draft.json").write_text(content)
    with pytest.raises(SourceError, match=reason):
        read_recipe(tmp_path)
