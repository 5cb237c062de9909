"""An adapter that nobody vouches for: each way in which it can be wrong is refused with its reason."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import adaptable_linears, read_adapter, write_adapter
from redraft_models.cut import cut_layers
from redraft_models.errors import AdapterRejected
from redraft_models.reading import read_model
from safetensors.torch import load_file, save_file

BASE = "base-draft-fingerprint"
AdapterFolder = Callable[..., Path]


def weights_of(folder: Path) -> Path:
    return folder / "adapter" / "adapter_model.safetensors"


def rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the tensors and make the provenance agree: only the tensors themselves are wrong then."""
    save_file(tensors, weights_of(folder))
    set_sha256(folder)


def set_sha256(folder: Path) -> None:
    path = folder / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["sha256"] = hashlib.sha256(weights_of(folder).read_bytes()).hexdigest()
    path.write_text(json.dumps(provenance))


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder: Path, draft: Any, **arguments: Any) -> str:
    with pytest.raises(AdapterRejected) as caught:
        read_adapter(folder, draft, BASE, **arguments)
    assert caught.value.reason == str(caught.value)
    assert "\n" not in caught.value.reason
    return caught.value.reason


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


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_truncated_weights(adapter_folder: AdapterFolder, random_draft: Any, kept: int) -> None:
    folder = adapter_folder(1)
    content = weights_of(folder).read_bytes()
    weights_of(folder).write_bytes(content[:kept])
    assert "its provenance says" in refusal(folder, random_draft)
    set_sha256(folder)
    assert "not a whole safetensors file" in refusal(folder, random_draft)


def test_an_altered_byte(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    content = bytearray(weights_of(folder).read_bytes())
    content[-1] ^= 1
    weights_of(folder).write_bytes(bytes(content))
    assert "sha256" in refusal(folder, random_draft)


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


@pytest.mark.parametrize(
    "missing", ["adapter/adapter_config.json", "adapter/adapter_model.safetensors", "provenance.json"]
)
def test_a_missing_file(adapter_folder: AdapterFolder, random_draft: Any, missing: str) -> None:
    folder = adapter_folder(1)
    (folder / missing).unlink()
    assert refusal(folder, random_draft) == f"{missing} is missing"


class Marker:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["adapter/adapter_model.bin", "model.pkl", "code.py", "adapter/deeper/x.so"])
def test_a_foreign_file_is_refused_and_never_run(
    adapter_folder: AdapterFolder, random_draft: Any, tmp_path: Path, name: str
) -> None:
    folder = adapter_folder(1)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(Marker(tmp_path / "ran")))
    assert name in refusal(folder, random_draft)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_under_a_safetensors_name(
    adapter_folder: AdapterFolder, random_draft: Any, tmp_path: Path
) -> None:
    folder = adapter_folder(1)
    weights_of(folder).write_bytes(pickle.dumps(Marker(tmp_path / "ran")))
    set_sha256(folder)
    assert "not a whole safetensors file" in refusal(folder, random_draft)
    assert not (tmp_path / "ran").exists()


def test_links_are_refused(adapter_folder: AdapterFolder, random_draft: Any, tmp_path: Path) -> None:
    folder = adapter_folder(1)
    outside = tmp_path / "outside.safetensors"
    weights_of(folder).rename(outside)
    weights_of(folder).symlink_to(outside)
    assert "is a link" in refusal(folder, random_draft)


def test_too_many_bytes(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert read_adapter(folder, random_draft, BASE, max_bytes=size).r == 4
    assert f"has {size} bytes, more than the {size - 1} allowed" in refusal(
        folder, random_draft, max_bytes=size - 1
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
@pytest.mark.parametrize("name", ["provenance.json", "adapter/adapter_config.json"])
def test_json_that_is_none(
    adapter_folder: AdapterFolder, random_draft: Any, name: str, content: bytes
) -> None:
    folder = adapter_folder(1)
    (folder / name).write_bytes(content)
    assert "JSON" in refusal(folder, random_draft)


def test_no_folder_at_all(tmp_path: Path, random_draft: Any) -> None:
    assert "there is no adapter folder" in refusal(tmp_path / "nowhere", random_draft)


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


HEAD = torch.tensor([0, 1, 5, 40], dtype=torch.int32)


def head_of(folder: Path) -> Path:
    return folder / "adapter" / "head.safetensors"


def record(folder: Path, **changes: Any) -> None:
    """Alter the provenance; None removes an entry."""
    path = folder / "provenance.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def test_a_version_brings_its_head(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    folder = adapter_folder(1, head_ids=HEAD)
    adapter = read_adapter(folder, random_draft, BASE)
    assert adapter.head_ids is not None
    assert torch.equal(adapter.head_ids, HEAD)
    assert adapter.provenance["head_sha256"] == hashlib.sha256(head_of(folder).read_bytes()).hexdigest()
    assert adapter.sha256 == read_adapter(adapter_folder(1, name="full"), random_draft, BASE).sha256


def test_an_adapter_from_before_heads_has_a_full_one(
    adapter_folder: AdapterFolder, random_draft: Any
) -> None:
    """A provenance that was taken over from another version does not promise that one's head."""
    folder = adapter_folder(1, provenance={"base_draft_fingerprint": BASE, "head_sha256": "0" * 64})
    assert not head_of(folder).exists()
    assert read_adapter(folder, random_draft, BASE).head_ids is None


def test_a_head_that_is_not_the_versions_own(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    """Altered, taken away, put beside an adapter that has none, with ids past the vocabulary."""
    folder = adapter_folder(1, head_ids=HEAD)
    sound = head_of(folder).read_bytes()
    head_of(folder).write_bytes(sound[:-4] + (41).to_bytes(4, "little"))
    assert "head.safetensors has sha256" in refusal(folder, random_draft)
    head_of(folder).write_bytes(sound)
    assert "outside of a vocabulary of 40" in refusal(folder, random_draft, vocab_size=40)
    record(folder, head_sha256=None)
    assert "the one recorded is None" in refusal(folder, random_draft)
    record(folder, head_sha256=hashlib.sha256(sound).hexdigest())
    head_of(folder).unlink()
    assert refusal(folder, random_draft) == "head.safetensors is missing, although its hash is recorded"


def test_ids_past_the_rows_of_the_draft(adapter_folder: AdapterFolder, random_draft: Any) -> None:
    rows = random_draft.config.vocab_size
    beyond = torch.tensor([0, rows], dtype=torch.int32)
    assert f"outside of a vocabulary of {rows}" in refusal(adapter_folder(1, head_ids=beyond), random_draft)


def test_nothing_is_written_for_ids_that_are_none(adapter_folder: AdapterFolder, tmp_path: Path) -> None:
    with pytest.raises(AdapterRejected, match="rising order"):
        adapter_folder(1, head_ids=HEAD.flip(0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["provenance.json", "adapter/adapter_config.json", "more.json"])
def test_json_of_many_bytes_is_not_parsed(
    adapter_folder: AdapterFolder, random_draft: Any, name: str
) -> None:
    """It would take many times its size in memory, long before a weight is looked at."""
    folder = adapter_folder(1)
    (folder / name).write_text('{"a": [' + "0," * (1 << 19) + "0]}")
    assert f"{name} has 1048" in refusal(folder, random_draft)
