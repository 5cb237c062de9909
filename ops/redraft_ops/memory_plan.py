"""How much memory a serving worker would hold with these settings, before any weight is read."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from redraft_models.cut import cut_layers, read_recipe
from redraft_models.draft_folder import DRAFT_FILE, read_draft_head
from redraft_models.dtypes import can_pack, trained_dtype
from redraft_models.loading import DEFAULT_DRAFT, NO_DRAFT, resolve_device
from redraft_models.local_config import local_config
from redraft_models.sources import DEFAULT
from redraft_serving.engine.interface import MemoryReport
from redraft_serving.engine.memory import memory_report, packed_bytes
from redraft_serving.engine.memory_sums import at_most, describe, size
from transformers import AutoModelForCausalLM

from redraft_ops.settings import Settings

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
MIB = 2**20
PROCESS = 512 * MIB
"""Taken by Python, the libraries and the tokenizer, beside what is reported; 450 were measured."""


def memory_sentence(settings: Settings) -> str:
    """What a worker would hold, and what is free. Raises RuntimeError where that is not enough."""
    report = planned_memory(settings)
    if report is None:
        return "known once target and draft are on this machine; `redraft serve` fetches them"
    free = free_bytes(resolve_device(settings.models.device))
    if free is not None and at_most(report) + PROCESS > free:
        raise RuntimeError(
            f"{describe(report)}; with {size(PROCESS)} for the process itself that is more than the "
            f"{size(free)} that are free: {_advice(report, free)}"
        )
    return describe(report) + (f"; {size(free)} are free" if free is not None else "")


def planned_memory(settings: Settings) -> MemoryReport | None:
    """The report that a worker would give; None where a hub model was never fetched. Raises SourceError."""
    config = local_config(settings.models.target, settings.cache_dir)
    if config is None:
        return None
    target = _skeleton(config)
    wanted = settings.models.draft != NO_DRAFT
    draft, head_rows = _draft(settings, target) if wanted else (None, None)
    if wanted and draft is None:
        return None
    drafts = [] if draft is None else [draft]
    for module in (target, *drafts):
        _cast(module, trained_dtype(settings.models.dtype))
    packs = can_pack(resolve_device(settings.models.device), target.dtype)
    return memory_report(
        target,
        drafts,
        slots=settings.serving.max_num_seqs,
        max_len=settings.models.max_model_len,
        prefix_cache_limit=settings.serving.prefix_cache_mb * MIB,
        extra_target_bytes=packed_bytes(target) if packs else 0,
        extra_draft_bytes=sum(packed_bytes(one, head_rows) for one in drafts) if packs else 0,
    )


def _draft(settings: Settings, target: Any) -> tuple[Any | None, int | None]:
    """The draft, and how many rows its head has where it is trimmed."""
    source = settings.models.draft
    folder = Path(source).expanduser()
    if source == DEFAULT:
        folder = Path(str(files("redraft_models"))) / "assets" / DEFAULT_DRAFT
    if (folder / DRAFT_FILE).is_file():
        recipe = read_recipe(folder)
        head_ids = read_draft_head(folder, recipe, target.config.vocab_size)
        return cut_layers(target, recipe.layers), None if head_ids is None else len(head_ids)
    config = local_config(source, settings.cache_dir)
    return (None if config is None else _skeleton(config)), None


def _skeleton(config: Any) -> Any:
    """The model's shapes without its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _cast(module: Any, dtype: torch.dtype) -> None:
    """As `load_pair` does: the weights change, buffers keep their dtype."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    module.config.dtype = dtype


def free_bytes(device: torch.device) -> int | None:
    """Memory that a process could still take there, within its container's limit; None where unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [found for found in (_available(), _below_limit()) if found is not None]
    return min(known, default=None)


def _available() -> int | None:
    kib = _number_after(MEMINFO, "MemAvailable:")
    return None if kib is None else kib * 1024


def _below_limit() -> int | None:
    """What the container's limit (cgroup version 2) leaves; files in memory give way, so they don't count."""
    try:
        limit = int((CGROUP / "memory.max").read_text())
    except (OSError, ValueError):  # no limit is the word "max"
        return None
    return max(0, limit - (_number_after(CGROUP / "memory.stat", "anon") or 0))


def _number_after(file: Path, name: str) -> int | None:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    return next((int(words[1]) for words in lines if words and words[0] == name), None)


def _advice(report: MemoryReport, free: int) -> str:
    per_slot = report.target_cache_per_slot + report.draft_cache_per_slot
    fitting = (free - PROCESS - at_most(report)) // per_slot + report.slots if per_slot else 0
    if fitting >= 1:
        return f"set serving.max_num_seqs to {fitting} or less, or models.max_model_len lower"
    return "lower serving.prefix_cache_mb or models.max_model_len, or take models.dtype bfloat16"
