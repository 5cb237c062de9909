"""An adapter's folder, altered in one way or another, and the sentence that refuses it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import read_adapter
from redraft_models.errors import AdapterRejected
from safetensors.torch import save_file

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
