"""What runs in the command's own process: chosen acceptance, the step profile, the check for equality."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from redraft_models.apart import apart
from redraft_models.loading import NO_DRAFT, ModelPair, load_pair
from redraft_models.quiet import quiet_transformers

from redraft_ops.bench.acceptance import Controlled, rows_of
from redraft_ops.bench.check import Checked, amount, check_equal
from redraft_ops.bench.interleave import blocks_of
from redraft_ops.bench.machine import memory_bandwidth
from redraft_ops.bench.plan import BenchPlan
from redraft_ops.bench.profile import profile, profiled
from redraft_ops.bench.prompts import PromptSets
from redraft_ops.bench.run import described
from redraft_ops.errors import UsageError
from redraft_ops.progress import Phases
from redraft_ops.settings import Settings


def run_acceptance(
    settings: Settings, plan: BenchPlan, sets: PromptSets, rates: Sequence[float], phases: Phases
) -> dict[str, Any]:
    """Speed of every configuration at chosen acceptances. Raises UsageError without a draft."""
    if settings.models.draft == NO_DRAFT:
        raise UsageError("--acceptance needs a draft, whose passes it times; the settings name none")
    started, deadline = time.monotonic(), time.monotonic() + plan.max_seconds
    rows: list[dict[str, Any]] = []
    complete, left = True, len(plan.dtypes) * len(plan.clients)
    for dtype, pair in _pairs(settings, plan, phases):
        controlled = Controlled(pair, settings.serving, plan, rates)
        with quiet_transformers(), controlled.runner:
            for clients, asks in sets.by_clients.items():
                turns = len(blocks_of(asks, plan.block_size(clients))) * len(controlled.lanes)
                until = time.monotonic() + (deadline - time.monotonic()) / left
                with phases.phase(f"{dtype}, {clients} clients", turns) as bar:
                    warm = sets.warm_up[: max(plan.warm_up, clients)]
                    found = controlled.run(asks, warm, clients, until, bar.advance)
                rows += rows_of(controlled, asks, found, clients, dtype)
                complete, left = complete and found.complete, left - 1
    return {**described(settings, plan, (), complete, started), "runs": rows}


def run_profile(settings: Settings, plan: BenchPlan, sets: PromptSets, phases: Phases) -> dict[str, Any]:
    """Where the time of a round goes."""
    started, deadline = time.monotonic(), time.monotonic() + plan.max_seconds
    rows: list[dict[str, Any]] = []
    turns = len(plan.clients) * len(profiled(plan))
    for dtype, pair in _pairs(settings, plan, phases):
        bandwidth = memory_bandwidth(str(pair.device))
        with phases.phase(f"profile, {dtype}", turns) as bar:
            own = (plan, dtype, bandwidth, deadline)
            rows += profile(pair, settings.serving, sets.by_clients, sets.warm_up, *own, bar.advance)
    unknown = any(row["round_ms"] is None for row in rows)
    notes = ["the engine tells no times by phase, so shares are unknown"] if unknown else []
    document = described(settings, plan, notes, len(rows) == turns * len(plan.dtypes), started)
    return {**document, "memory_bandwidth_gb_per_second": bandwidth, "runs": rows}


def run_check(settings: Settings, plan: BenchPlan, sets: PromptSets, phases: Phases) -> dict[str, Any]:
    """Greedy text with speculation on and off."""
    started, deadline = time.monotonic(), time.monotonic() + plan.max_seconds
    turns = amount(plan, settings.serving.max_speculative_tokens)
    checked: list[Checked] = []
    for dtype, pair in _pairs(settings, plan, phases):
        with quiet_transformers(), phases.phase(f"check, {dtype}", turns + len(plan.clients)) as bar:
            own = (plan, dtype, deadline)
            checked += check_equal(pair, settings.serving, sets.by_clients, *own, bar.advance)
    notes = [_fork(one) for one in checked if not one.result.equal]
    return {
        **described(settings, plan, notes, len(checked) == turns * len(plan.dtypes), started),
        "checks": [one.row() for one in checked],
        "equal": all(one.result.equal for one in checked),
    }


def _fork(one: Checked) -> str:
    where = f"{one.name}, {one.clients} clients, {one.dtype}"
    if not one.result.different:
        return f"{where}: nothing was compared"
    fork = one.result.different[0]
    return f"{where}: prompt {fork.index} forks at token {fork.position}: {fork.found} for {fork.expected}"


def _pairs(settings: Settings, plan: BenchPlan, phases: Phases) -> Iterator[tuple[str, ModelPair]]:
    if plan.threads:
        torch.set_num_threads(plan.threads)
    for dtype in plan.dtypes:
        with phases.phase(f"load the pair, {dtype}"):
            models = settings.models.model_copy(update={"dtype": dtype})
            pair = apart(lambda models=models: load_pair(models, settings.cache_dir))  # type: ignore[misc]
        yield dtype, pair
