"""The default target: converted from the package that carries it, cut, and loaded as a pair."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from redraft_models.cut import write_draft_folder
from redraft_models.fingerprints import tokenizer_fingerprint, weights_fingerprint
from redraft_models.loading import load_pair
from redraft_models.reading import read_tokenizer
from redraft_models.settings import ModelSettings
from redraft_models.sources import DEFAULT_PACKAGE, DEFAULT_REQUIREMENT, resolve_source

pytestmark = pytest.mark.slow

TARGET_FINGERPRINT = "144c4f6518e28433a9993f00051d7758725abb4934905beaa3006046436e0ce5"
LAYERS = [0, 1, 2, 29]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of its own, so that the conversion itself is under test."""
    if importlib.util.find_spec(DEFAULT_PACKAGE) is None:
        pytest.skip(f"{DEFAULT_REQUIREMENT} is not installed")
    return tmp_path_factory.mktemp("cache")


def test_the_conversion_gives_the_same_weights_on_every_machine(cache_dir: Path) -> None:
    """A shipped draft names this fingerprint."""
    folder = resolve_source("default", cache_dir)
    assert weights_fingerprint(folder) == TARGET_FINGERPRINT
    assert resolve_source("default", cache_dir) == folder


def test_a_cut_of_the_default_target_shares_its_ends(cache_dir: Path, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(resolve_source("default", cache_dir), "default")
    write_draft_folder(
        tmp_path / "draft",
        target="default",
        target_fingerprint=TARGET_FINGERPRINT,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        layers=LAYERS,
    )
    pair = load_pair(ModelSettings(draft=str(tmp_path / "draft"), device="cpu"), cache_dir)
    assert pair.draft is not None
    target, draft = pair.target.module, pair.draft.module
    embedding = target.model.embed_tokens.weight.data_ptr()
    assert {draft.model.embed_tokens.weight.data_ptr(), draft.lm_head.weight.data_ptr()} == {embedding}
    assert draft.model.norm.weight.data_ptr() == target.model.norm.weight.data_ptr()
    assert [layer.self_attn.layer_idx for layer in draft.model.layers] == [0, 1, 2, 3]
    for layer, index in zip(draft.model.layers, LAYERS, strict=True):
        assert torch.equal(layer.mlp.down_proj.weight, target.model.layers[index].mlp.down_proj.weight)
    assert (pair.vocab_size, pair.eos_token_ids) == (49152, frozenset({2}))
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    prompt = pair.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = target.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in pair.tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    with torch.no_grad():
        assert draft(**prompt).logits.isfinite().all()
