"""The ids of a draft's output head that come with an adapter."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import read_adapter
from redraft_models.errors import AdapterRejected

from .broken_adapters import BASE, AdapterFolder, refusal

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
