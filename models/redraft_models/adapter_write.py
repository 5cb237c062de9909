"""Write adapter folders, whole or not at all, with no path of this machine inside."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from redraft_models.errors import AdapterRejected
from redraft_models.head import HEAD_FILE, HEAD_SHA256, write_head
from redraft_models.lora import (
    ADAPTER_FOLDER,
    CONFIG_FILE,
    PEFT_PREFIX,
    PROVENANCE_FILE,
    WEIGHTS_FILE,
    Adapter,
)

_LORA_PARTS = (".lora_A.", ".lora_B.")


def save_adapter(
    peft_model: Any,
    folder: Path,
    provenance: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    adapter_name: str = "default",
    head_ids: Tensor | None = None,
) -> str:
    """Write a trained PEFT model's adapter and its provenance into `folder`; answers the weights' sha256.

    `provenance` must name `base_draft_fingerprint`. `dtype` is how the tensors are stored: bfloat16 halves
    the file. `head_ids` (int32 [S], ascending) are the ids that this version's head scores; None is the full
    head. Raises AdapterRejected where a tensor isn't finite or the ids are none.
    """
    config = peft_model.peft_config[adapter_name]
    tensors = {
        name.removeprefix(PEFT_PREFIX).replace(f".{adapter_name}.weight", ".weight"): parameter.detach()
        for name, parameter in peft_model.named_parameters()
        if any(part in name for part in _LORA_PARTS) and f".{adapter_name}." in name
    }
    return write_adapter(
        folder,
        tensors,
        r=config.r,
        lora_alpha=config.lora_alpha,
        target_modules=sorted(config.target_modules),
        provenance=provenance,
        dtype=dtype,
        lora_dropout=config.lora_dropout,
        head_ids=head_ids,
    )


def write_adapter(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    r: int,
    lora_alpha: float,
    target_modules: list[str],
    provenance: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    lora_dropout: float = 0.0,
    head_ids: Tensor | None = None,
) -> str:
    """Write an adapter folder from `<path>.lora_A.weight` and `<path>.lora_B.weight`; answers its sha256.

    `head_ids` as in `save_adapter`. `folder` may exist if it is empty. It appears under its name only once
    it is complete.
    """
    stored = {f"{PEFT_PREFIX}{key}": tensor.to("cpu", dtype).contiguous() for key, tensor in tensors.items()}
    broken = next((key for key, tensor in stored.items() if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        raise AdapterRejected(f"the trained adapter is not finite in {broken}; nothing was written")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": provenance["base_draft_fingerprint"],
        "r": r,
        "lora_alpha": lora_alpha,
        "lora_dropout": lora_dropout,
        "target_modules": target_modules,
        "bias": "none",
        "inference_mode": True,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        sha256 = _fill(unfinished, stored, config, provenance, head_ids)
        unfinished.chmod(0o755)
        unfinished.replace(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return sha256


def _fill(
    folder: Path,
    stored: dict[str, Tensor],
    config: dict[str, Any],
    provenance: Mapping[str, Any],
    head_ids: Tensor | None,
) -> str:
    adapter = folder / ADAPTER_FOLDER
    adapter.mkdir()
    weights = adapter / WEIGHTS_FILE
    save_file(stored, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    _write_json(adapter / CONFIG_FILE, config)
    # A provenance taken over from another version may name that one's head.
    facts = {name: value for name, value in provenance.items() if name != HEAD_SHA256}
    if head_ids is not None:
        facts[HEAD_SHA256] = write_head(adapter / HEAD_FILE, head_ids)
    _write_json(folder / PROVENANCE_FILE, {**facts, "sha256": sha256})
    return sha256


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@torch.no_grad()
def load_into_peft(peft_model: Any, adapter: Adapter, adapter_name: str = "default") -> None:
    """Set a PEFT model's LoRA weights to those of `adapter`, to train on from there.

    Raises AdapterRejected where rank, scale or layers differ: a training round then starts from zero.
    """
    config = peft_model.peft_config[adapter_name]
    if (config.r, float(config.lora_alpha)) != (adapter.r, adapter.lora_alpha):
        here = f"r {config.r}, lora_alpha {config.lora_alpha}"
        raise AdapterRejected(
            f"the adapter has r {adapter.r}, lora_alpha {adapter.lora_alpha}; training has {here}"
        )
    slots = {
        name.removeprefix(PEFT_PREFIX).replace(f".{adapter_name}.weight", ".weight"): parameter
        for name, parameter in peft_model.named_parameters()
        if any(part in name for part in _LORA_PARTS) and f".{adapter_name}." in name
    }
    if slots.keys() != adapter.tensors.keys():
        raise AdapterRejected(
            f"the adapter has {len(adapter.tensors)} tensors where training has {len(slots)}"
        )
    for name, parameter in slots.items():
        parameter.copy_(adapter.tensors[name])
