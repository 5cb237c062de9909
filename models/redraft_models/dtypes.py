"""Which dtype the weights are held in: a named one, or the fastest on this machine by measurement."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor
from torch.nn.functional import linear

AUTO, REFERENCE = "auto", torch.float32
CANDIDATES = (torch.float32, torch.bfloat16)
ROWS = (1, 8)
INPUTS, OUTPUTS, WEIGHTS = 1024, 4096, 12
"""Of the products that are timed: together larger than a processor's caches, as a model's weights are."""
REPEATS = 5
WORTH = 1.15
"""A shorter dtype changes the law a little, so it has to be faster by this much."""


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """True where oneDNN lays weights out for products: on CPUs, for float32, and for bfloat16 where the
    processor has AVX-512 or the like; elsewhere packing bfloat16 raises (pytorch#99423).
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of a setting. "auto" times matrix products of one row and of eight, under a second, and takes
    bfloat16 where that is clearly faster than float32.
    """
    if name != AUTO:
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    seconds = {dtype: product_seconds(dtype, device) for dtype in CANDIDATES}
    best = min(seconds, key=lambda dtype: seconds[dtype])
    return best if seconds[REFERENCE] > WORTH * seconds[best] else REFERENCE


def trained_dtype(name: str) -> torch.dtype:
    """The dtype in which a draft is trained and measured where the setting is "auto": the reference."""
    dtype: torch.dtype = REFERENCE if name == AUTO else getattr(torch, name)
    return dtype


@torch.inference_mode()
def product_seconds(dtype: torch.dtype, device: torch.device) -> float:
    """Seconds of one pass over a few weights, for one row and for eight: medians, added up."""
    weights = [torch.randn(OUTPUTS, INPUTS, device=device).to(dtype) for _ in range(WEIGHTS)]
    packed = can_pack(device, dtype)
    if packed:
        weights = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for weight in weights]
    total = 0.0
    for rows in ROWS:
        x = torch.randn(rows, INPUTS, device=device).to(dtype)
        _pass(x, weights, packed)
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            _pass(x, weights, packed)
            times.append(time.perf_counter() - started)
        total += statistics.median(times)
    return total


def _pass(x: Tensor, weights: list[Tensor], packed: bool) -> None:
    for weight in weights:
        if packed:
            torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
        else:
            linear(x, weight)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
