"""Convert a GGUF file to a safetensors folder, once per file and machine."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import shutil
import struct
import tempfile
from pathlib import Path

import torch

from redraft_models.errors import SourceError
from redraft_models.quiet import quiet_transformers

UNREADABLE = (ValueError, KeyError, OSError, RuntimeError, IndexError, struct.error)
"""What transformers raises for a file that is no whole GGUF, or of an architecture that it doesn't know."""

_log = logging.getLogger(__name__)


def convert_once(gguf: Path, models_dir: Path) -> Path:
    """The folder `models_dir`/<sha256 of the file>: float32 safetensors, config and tokenizer of `gguf`.

    The folder appears whole by a rename, so that two processes may convert at once: the second's work is
    dropped. Raises SourceError where transformers can't read the file.
    """
    finished = converted_folder(gguf, models_dir)
    if finished.is_dir():
        return finished
    _log.info("converting %s to safetensors (once; it takes up to a minute per 100 MB)", gguf.name)
    models_dir.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".converting-", dir=models_dir))
    try:
        _convert(gguf, unfinished)
        unfinished.chmod(0o755)
        for written in unfinished.iterdir():
            written.chmod(0o644)
        _publish(unfinished, finished)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return finished


def converted_folder(gguf: Path, models_dir: Path) -> Path:
    """Where the conversion of a file belongs, whether or not it is there already."""
    with gguf.open("rb") as file:
        return models_dir / hashlib.file_digest(file, "sha256").hexdigest()


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        # The bar of the GGUF reader listens to no setting.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent,
                gguf_file=gguf.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
            )
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except UNREADABLE as error:
        raise SourceError(f"{gguf.name} can't be converted to safetensors: {error}") from error


def _publish(unfinished: Path, finished: Path) -> None:
    try:
        unfinished.rename(finished)
    except OSError:
        # Renaming onto a folder with files fails: another process was first, and its result is the same.
        if not finished.is_dir():
            raise
