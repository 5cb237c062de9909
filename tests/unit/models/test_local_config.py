"""A model's config without the model: what is here is read, what isn't is not fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.errors import SourceError
from redraft_models.gguf import converted_folder
from redraft_models.local_config import local_config

Pair = Callable[[str], tuple[Path, Path]]


def test_a_folder(toy_pair: Pair, tmp_path: Path) -> None:
    target, _ = toy_pair("random")
    assert local_config(str(target), tmp_path).model_type == "llama"


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_converted_gguf_is_read_from_its_conversion(toy_pair: Pair, tmp_path: Path, named: str) -> None:
    """The GGUF itself, which is none here, is not read again."""
    gguf = tmp_path / "held" / "model.gguf"
    gguf.parent.mkdir()
    gguf.write_bytes(b"converted already")
    folder = converted_folder(gguf, tmp_path / "cache" / "models")
    folder.parent.mkdir(parents=True)
    folder.symlink_to(toy_pair("random")[0])
    source = gguf if named == "file" else gguf.parent
    assert local_config(str(source), tmp_path / "cache").model_type == "llama"


def test_a_hub_id_that_was_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the hub could be asked."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert local_config("nobody/nothing", tmp_path) is None


def test_what_is_no_model_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for source in (
        str(tmp_path / "nowhere"),
        str(tmp_path / "empty"),
        str(tmp_path / "broken.gguf"),
        "a/b/c",
    ):
        with pytest.raises(SourceError) as refused:
            local_config(source, tmp_path / "cache")
        assert "\n" not in str(refused.value)
