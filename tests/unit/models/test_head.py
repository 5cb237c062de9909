"""The ids that a trimmed head scores: how they are chosen, and files that are refused."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from redraft_models.errors import AdapterRejected
from redraft_models.head import HeadIds, choose_head_ids, read_head, rounded_size, write_head
from safetensors.torch import save_file

V = 200


def ids(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def test_ids_in_use_come_first_then_the_lowest() -> None:
    head = choose_head_ids(Counter({150: 7, 90: 3, 30: 1, 170: 0}), V, size=6, always=[199])
    assert head is not None
    assert head.ids.tolist() == [0, 1, 30, 90, 150, 199]
    assert head.ids.dtype == torch.int32


def test_the_most_used_stay_where_room_is_short() -> None:
    counts = {150: 7.0, 90: 3.0, 30: 1.0, 31: 3.0}
    head = choose_head_ids(counts, V, size=3, always=[1])
    assert head is not None
    assert head.ids.tolist() == [1, 31, 150], "of equal counts the lowest id"
    assert head.coverage(counts) == pytest.approx(10 / 14)
    assert head.coverage({}) is None


def test_ids_outside_of_the_vocabulary_are_never_scored() -> None:
    head = choose_head_ids({-1: 9, V: 9, 5: 1}, V, size=2, always=[V + 3])
    assert head is not None
    assert head.ids.tolist() == [0, 5]


@pytest.mark.parametrize(
    ("size", "rounded"), [(0, 0), (16, 16), (63, 63), (64, 64), (65, 128), (8000, 8000), (8190, 8192)]
)
def test_sizes_are_multiples_of_64_but_for_toys(size: int, rounded: int) -> None:
    assert rounded_size(size) == rounded


@pytest.mark.parametrize(("vocab_size", "trimmed"), [(127, False), (128, True), (255, True)])
def test_a_small_vocabulary_keeps_its_full_head(vocab_size: int, trimmed: bool) -> None:
    head = choose_head_ids({}, vocab_size, size=50 + 14)
    assert (head is not None) is trimmed
    assert choose_head_ids({3: 1}, vocab_size, size=0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        ids(),
        ids(3, 3),
        ids(4, 3),
        ids(-1, 3),
        ids(1, 2, dtype=torch.int64),
        torch.zeros(2, 2, dtype=torch.int32),
    ],
)
def test_ids_that_are_none(tmp_path: Path, wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="the ids of a head"):
        HeadIds(wrong)
    with pytest.raises(AdapterRejected, match="nothing was written"):
        write_head(tmp_path / "head.safetensors", wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_head_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    sha256 = write_head(path, ids(0, 7, V - 1))
    assert write_head(tmp_path / "again", ids(0, 7, V - 1)) == sha256
    found = read_head(path, sha256, V)
    assert found is not None
    assert (found.tolist(), found.dtype) == ([0, 7, V - 1], torch.int32)
    assert read_head(tmp_path / "nowhere", None, V) is None


def refusal(path: Path, sha256: object, vocab_size: int = V) -> str:
    with pytest.raises(AdapterRejected) as caught:
        read_head(path, sha256, vocab_size)
    assert "\n" not in caught.value.reason
    return caught.value.reason


def test_file_and_hash_belong_together(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    sha256 = write_head(path, ids(0, 7, 9))
    content = bytearray(path.read_bytes())
    content[-4] ^= 1  # 9 becomes 8: still a sound set of ids
    path.write_bytes(bytes(content))
    assert "the one recorded is" in refusal(path, sha256)
    assert "recorded is None" in refusal(path, None), "a file that nobody recorded"
    path.unlink()
    assert "is missing" in refusal(path, sha256)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"head_ids": ids(3, 2)}, "rising order"),
        ({"head_ids": ids(2, 2)}, "rising order"),
        ({"head_ids": ids(0, V)}, f"from 0 to {V}, outside of a vocabulary of {V}"),
        ({"head_ids": ids(-1, 2)}, "from -1 to 2"),
        ({"head_ids": ids(1, 2, dtype=torch.int64)}, "int32 in one dimension"),
        ({"head_ids": torch.tensor([1.0, 2.0])}, "int32 in one dimension"),
        ({"head_ids": torch.zeros(1, 2, dtype=torch.int32)}, "int32 in one dimension"),
        ({"head_ids": ids()}, "int32 in one dimension"),
        ({"ids": ids(1, 2)}, "holds ids, not 'head_ids' alone"),
        ({"head_ids": ids(1), "more": ids(1)}, "holds head_ids, more"),
        ({"head_ids": torch.arange(2 * V + 2000, dtype=torch.int32)}, "bytes; ids of this vocabulary need"),
    ],
)
def test_files_that_hold_something_else(
    tmp_path: Path, tensors: dict[str, torch.Tensor], reason: str
) -> None:
    path = tmp_path / "head.safetensors"
    save_file(tensors, path)
    assert reason in refusal(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"{}", b"\xff" * 64])
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "head.safetensors"
    path.write_bytes(content)
    assert "not a whole safetensors file" in refusal(path, hashlib.sha256(content).hexdigest())
