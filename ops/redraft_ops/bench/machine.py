"""What a bench ran on, and how fast that machine reads memory."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redraft_ops.bench.figures import median

BANDWIDTH_BYTES = 1 << 29
BANDWIDTH_REPEATS = 7


def machine() -> dict[str, Any]:
    """Processor, cores, memory, devices and versions, in words and numbers."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "transformers": version("transformers"),
        "redraft": version("redraft"),
    }


def memory_bandwidth(device: str = "cpu") -> float:
    """GB/s of reading a tensor much larger than the caches: the floor of a step that reads all weights.

    The median of seven sums over 512 MiB of float32, by torch's own threads.
    """
    import torch

    values = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    times = []
    for repeat in range(BANDWIDTH_REPEATS + 1):
        started = time.perf_counter()
        float(values.sum())  # waits for a device
        if repeat:  # the first one wakes threads up
            times.append(time.perf_counter() - started)
    return BANDWIDTH_BYTES / (median(times) or 1.0) / 1e9


def step_bytes(module: Any) -> int:
    """Bytes that one decoding step of a model has to read: all weights, of an embedding table only its rows.

    A table that is also the head is read as the head. Keys and values are not counted.
    """
    own = {id(p): p.numel() * p.element_size() for p in module.parameters()}
    table, head = module.get_input_embeddings(), module.get_output_embeddings()
    if table is not None and (head is None or head.weight is not table.weight):
        own.pop(id(table.weight), None)
    return sum(own.values())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
