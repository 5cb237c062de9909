"""One hash for one model, however its files are laid out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from redraft_models.errors import SourceError
from redraft_models.fingerprints import tokenizer_fingerprint, weights_fingerprint
from redraft_models.toy_tokenizer import build_tokenizer
from safetensors.torch import load_file, save_file

WORDS = ("red", "green", "blue")
ToyPair = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def model(toy_pair: ToyPair, tmp_path: Path) -> Path:
    """A copy of the random target that a test may alter."""
    return Path(shutil.copytree(toy_pair("random")[0], tmp_path / "model"))


def write_shards(model: Path, order: int) -> Path:
    """The same tensors over two files, in either order."""
    tensors = load_file(model / "model.safetensors")
    folder = model.parent / f"sharded{order}"
    folder.mkdir()
    names = sorted(tensors)[::order]
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in halves.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in halves.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_do_not_matter(model: Path) -> None:
    expected = weights_fingerprint(model)
    assert len(expected) == 64
    assert [weights_fingerprint(write_shards(model, order)) for order in (1, -1)] == [expected, expected]


def test_metadata_and_foreign_files_do_not_matter(model: Path) -> None:
    expected = weights_fingerprint(model)
    tensors = load_file(model / "model.safetensors")
    save_file(tensors, model / "model.safetensors", metadata={"made": "elsewhere"})
    save_file({"x": torch.zeros(1)}, model / "consolidated.safetensors")
    assert weights_fingerprint(model) == expected


@pytest.mark.parametrize("change", ["value", "dtype", "shape", "name"])
def test_every_part_of_a_tensor_matters(model: Path, change: str) -> None:
    before = weights_fingerprint(model)
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "value":
        tensors[name][0, 0] = torch.nextafter(tensors[name][0, 0], torch.tensor(9.0))
    if change == "dtype":
        tensors[name] = tensors[name].view(torch.int32)
    if change == "shape":
        tensors[name] = tensors[name].reshape(-1)
    if change == "name":
        tensors["other"] = tensors.pop(name)
    save_file(tensors, model / "model.safetensors")
    assert weights_fingerprint(model) != before


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"[:-1], b"\x02\0\0\0\0\0\0\0[]"]
)
def test_a_file_that_is_no_safetensors(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(SourceError, match="not a whole safetensors file"):
        weights_fingerprint(model)


def test_a_truncated_file(model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(SourceError, match="ends before its last tensor"):
        weights_fingerprint(model)


def test_a_missing_shard_and_a_broken_index(model: Path) -> None:
    folder = write_shards(model, 1)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SourceError, match="has no model-00002-of-00002"):
        weights_fingerprint(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(SourceError, match="not an index"):
        weights_fingerprint(folder)


def test_the_same_tokenizer_has_the_same_fingerprint() -> None:
    assert tokenizer_fingerprint(build_tokenizer(WORDS)) == tokenizer_fingerprint(build_tokenizer(WORDS))


def test_chat_template_and_padding_are_no_part_of_it() -> None:
    """Neither changes what an id means."""
    expected = tokenizer_fingerprint(build_tokenizer(WORDS))
    other = build_tokenizer(WORDS, pad_is_eos=True)
    other.chat_template = "{{ messages }}"
    assert tokenizer_fingerprint(other) == expected


def test_words_order_and_special_tokens_are() -> None:
    seen = {tokenizer_fingerprint(build_tokenizer(words)) for words in (WORDS, WORDS[::-1], (*WORDS, "x"))}
    other_end = build_tokenizer(WORDS)
    other_end.eos_token = "<pad>"
    added = build_tokenizer(WORDS)
    added.add_tokens(["more"])
    assert len(seen | {tokenizer_fingerprint(other_end), tokenizer_fingerprint(added)}) == 5
