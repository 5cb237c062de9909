"""Files of an adapter that are truncated, altered, foreign, missing, links, too large, or no JSON."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from redraft_models.adapter import read_adapter

from .broken_adapters import BASE, AdapterFolder, refusal, set_sha256, weights_of


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


@pytest.mark.parametrize("name", ["provenance.json", "adapter/adapter_config.json", "more.json"])
def test_json_of_many_bytes_is_not_parsed(
    adapter_folder: AdapterFolder, random_draft: Any, name: str
) -> None:
    """It would take many times its size in memory, long before a weight is looked at."""
    folder = adapter_folder(1)
    (folder / name).write_text('{"a": [' + "0," * (1 << 19) + "0]}")
    assert f"{name} has 1048" in refusal(folder, random_draft)
