"""Adapters of the base draft: read, trusted only after checks, written, and merged into serving weights.

An adapter folder holds `adapter/adapter_config.json`, `adapter/adapter_model.safetensors` and
`provenance.json`. It is always relative to the pristine base draft, never to a merged one.
"""

from __future__ import annotations

from redraft_models.adapter_read import MAX_ADAPTER_BYTES, read_adapter
from redraft_models.adapter_write import load_into_peft, save_adapter, write_adapter
from redraft_models.lora import Adapter, adaptable_linears, deltas
from redraft_models.serving_weights import PreparedWeights, ServingWeights

__all__ = [
    "MAX_ADAPTER_BYTES",
    "Adapter",
    "PreparedWeights",
    "ServingWeights",
    "adaptable_linears",
    "deltas",
    "load_into_peft",
    "read_adapter",
    "save_adapter",
    "write_adapter",
]
