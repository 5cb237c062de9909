"""A copy that differs from what was recorded is told apart from contents that are wrong as recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_models.adapter import read_adapter
from redraft_models.errors import AdapterRejected, AdapterSpoilt

FILES = ("provenance.json", "adapter/adapter_config.json", "adapter/adapter_model.safetensors")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "altered"])
def test_a_file_spoilt_on_its_way(
    name: str, change: str, adapter_folder: Callable[..., Path], random_draft: Any
) -> None:
    path = adapter_folder(1) / name
    content = path.read_bytes()
    middle = len(content) // 2
    rest = bytes(byte ^ 0xFF for byte in content[middle:]) if change == "altered" else b""
    path.write_bytes(content[:middle] + rest)
    with pytest.raises(AdapterSpoilt):
        read_adapter(path.parents[name.count("/")], random_draft, None)


def test_another_base_is_no_spoilt_copy(adapter_folder: Callable[..., Path], random_draft: Any) -> None:
    with pytest.raises(AdapterRejected) as caught:
        read_adapter(adapter_folder(1), random_draft, "another")
    assert not isinstance(caught.value, AdapterSpoilt)
