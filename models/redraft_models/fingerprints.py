"""What a model and a tokenizer are, in one hash each, whatever folder or file layout holds them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from redraft_models.errors import SourceError

_MAX_HEADER_BYTES = 100 << 20
_CHUNK = 1 << 22
NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")
"""The special tokens that have a meaning here. Padding has none: we mask by attention, never by id."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, shards included. Raises SourceError where there are none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{index} is not an index of safetensors files: {error}") from error
        files = [folder / Path(name).name for name in names]
    else:
        files = [folder / "model.safetensors"]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise SourceError(f"{folder} has no {missing.name}; only safetensors weights are read")
    return files


def weights_fingerprint(folder: Path) -> str:
    """sha256 over (name, dtype, shape, bytes) of every tensor of a model folder, in the order of names.

    Equal for one file and for any division into shards. Raises SourceError for files that are not
    safetensors.
    """
    tensors: dict[str, tuple[Path, dict[str, Any], int]] = {}
    for file in weight_files(folder):
        header, data_start = _header(file)
        tensors.update({name: (file, entry, data_start) for name, entry in header.items()})
    digest = hashlib.sha256()
    for name in sorted(tensors):
        file, entry, data_start = tensors[name]
        digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
        begin, end = entry["data_offsets"]
        with file.open("rb") as opened:
            _hash_range(digest, opened, data_start + begin, end - begin)
    return digest.hexdigest()


def _header(file: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """The tensor entries of a safetensors file, and where its data begin (8 bytes of length, JSON, data)."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header claims {length} bytes")
            entries = json.loads(opened.read(length))
        entries.pop("__metadata__", None)
        size = file.stat().st_size - 8 - length
        if any(entry["data_offsets"][1] > size for entry in entries.values()):
            raise ValueError("it ends before its last tensor")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{file} is not a whole safetensors file: {error}") from error
    return entries, 8 + length


def _hash_range(digest: Any, opened: BinaryIO, start: int, length: int) -> None:
    opened.seek(start)
    while length > 0:
        chunk = opened.read(min(_CHUNK, length))
        if not chunk:
            raise SourceError("a safetensors file shrank while it was read; copy the model again")
        digest.update(chunk)
        length -= len(chunk)


def tokens_by_id(tokenizer: Any) -> dict[int, str]:
    """Id -> text of every token, added ones included, in the order of ids."""
    return dict(sorted((int(token_id), text) for text, token_id in tokenizer.get_vocab().items()))


def special_tokens(tokenizer: Any) -> dict[str, str | None]:
    """The named special tokens: what begins, ends, and stands for an unknown token."""
    return {name: getattr(tokenizer, name) for name in NAMED_SPECIAL_TOKENS}


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """sha256 over id and text of every token and the special tokens; the chat template is no part of it."""
    content = [list(tokens_by_id(tokenizer).items()), sorted(special_tokens(tokenizer).items())]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
