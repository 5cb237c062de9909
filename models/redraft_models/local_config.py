"""The config of a model that is on this machine already: nothing is fetched, converted or loaded for it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from redraft_models.errors import SourceError
from redraft_models.gguf import UNREADABLE, converted_folder
from redraft_models.quiet import quiet_transformers
from redraft_models.reading import first_line, read_config
from redraft_models.sources import DEFAULT, default_gguf


def local_config(source: str, cache_dir: Path) -> Any | None:
    """The config behind a source as `resolve_source` takes it; None for a hub id that was never fetched.

    A GGUF file that has not been converted yet is asked itself, which takes some seconds. Raises SourceError
    where there is no such model, or its config can't be read.
    """
    path = Path(source).expanduser()
    gguf = default_gguf() if source == DEFAULT else _gguf_at(path)
    if gguf is not None:
        folder = converted_folder(gguf, cache_dir / "models")
        return read_config(folder, source) if folder.is_dir() else _gguf_config(gguf)
    if path.is_dir():
        return read_config(path, source)
    fetched = _fetched(source)
    return None if fetched is None else read_config(fetched, source)


def _gguf_at(path: Path) -> Path | None:
    """A .gguf file, or the only one in a folder that is no model folder itself."""
    if path.is_file() and path.suffix == ".gguf":
        return path
    if path.is_dir() and not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        return found[0] if len(found) == 1 else None
    return None


def _gguf_config(gguf: Path) -> Any:
    try:
        # The bar of the GGUF reader listens to no setting.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            return AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except UNREADABLE as error:
        raise SourceError(f"the config in {gguf.name} can't be read: {first_line(error)}") from error


def _fetched(hub_id: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=["config.json"], local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise SourceError(f"{hub_id} is neither a model folder, a .gguf file nor a hub id") from error
