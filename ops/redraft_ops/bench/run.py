"""`redraft bench`: servers under load and transformers beside them, in turn, on the same prompts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redraft_models.loading import NO_DRAFT

from redraft_ops.bench.figures import figures, paired
from redraft_ops.bench.interleave import Interleaved, Lane, blocks_of, run_interleaved
from redraft_ops.bench.judging import Judge
from redraft_ops.bench.machine import machine, memory_bandwidth
from redraft_ops.bench.plan import LIBRARY, BenchPlan
from redraft_ops.bench.prompts import PromptSets
from redraft_ops.bench.serving import open_sides
from redraft_ops.progress import Phases
from redraft_ops.settings import Settings

BASES = ("off", *LIBRARY)
"""What others are compared with, block by block."""
WARM_UP_SHARE = 0.3
"""Of the time that there is: past it, lanes are measured cold rather than not at all."""


def run_bench(
    settings: Settings, plan: BenchPlan, sets: PromptSets, tokenizer: Any, out: Path, phases: Phases
) -> dict[str, Any]:
    """The document of a run: what `--json` prints. Raises what starting and asking the sides raises."""
    started, deadline = time.monotonic(), time.monotonic() + plan.max_seconds
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    complete = True
    with ExitStack() as cleanup:
        before = memory_bandwidth()
        with phases.phase("start what is compared"):
            sides = open_sides(settings, plan, bool(tokenizer.chat_template), out, cleanup)
        judge = Judge(plan, sides.libraries, tokenizer)
        for level, clients in enumerate(plan.clients):
            lanes, left_out = sides.lanes(clients, settings.models.draft != NO_DRAFT)
            notes += left_out
            share = (deadline - time.monotonic()) / (len(plan.clients) - level)
            found = _level(plan, sets, lanes, clients, time.monotonic() + share, phases)
            complete = complete and found.complete
            rows += _rows(plan, sets, lanes, found, clients, judge)
        notes += [_failures(row) for row in rows if row["failed"]]
        bandwidths = [before, memory_bandwidth()]
    return {
        **described(settings, plan, notes, complete, started),
        "memory_bandwidth_gb_per_second": sum(bandwidths) / len(bandwidths),
        "runs": rows,
    }


def described(
    settings: Settings, plan: BenchPlan, notes: Sequence[str], complete: bool, started: float
) -> dict[str, Any]:
    """What every document says of the machine, the models and the plan."""
    more = [] if complete else [f"stopped by --max-seconds {plan.max_seconds:g}: not everything was run"]
    shown = asdict(plan)
    shown["compare"] = [one.name for one in plan.compare]
    return {
        "machine": machine(),
        "target": settings.models.target,
        "draft": settings.models.draft,
        "plan": shown,
        "complete": complete,
        "seconds": time.monotonic() - started,
        "notes": [*notes, *more],
    }


def _level(
    plan: BenchPlan, sets: PromptSets, lanes: Sequence[Lane], clients: int, deadline: float, phases: Phases
) -> Interleaved:
    blocks = blocks_of(sets.by_clients[clients], plan.block_size(clients))
    warm = sets.warm_up[: max(plan.warm_up, clients)] if plan.warm_up else []
    title = f"{clients} clients" if plan.rate is None else f"{plan.rate:g} requests/s"
    enough = time.monotonic() + WARM_UP_SHARE * (deadline - time.monotonic())
    with phases.phase(f"warm up, {title}", len(lanes)) as bar:
        for lane in lanes if warm else ():
            if time.monotonic() < enough:
                lane.answer(warm)
            bar.advance()
    with phases.phase(title, len(lanes) * len(blocks)) as bar:
        return run_interleaved(lanes, blocks, deadline, bar.advance)


def _failures(row: Mapping[str, Any]) -> str:
    return f"{row['name']}: {row['failed']} of {row['requests']} requests failed, {row['errors'][0]}"


def _rows(
    plan: BenchPlan,
    sets: PromptSets,
    lanes: Sequence[Lane],
    found: Interleaved,
    clients: int,
    judge: Judge,
) -> list[dict[str, Any]]:
    answered = dict(zip(((lane.name, lane.dtype) for lane in lanes), found.blocks, strict=True))
    verdicts = judge.verdicts(answered, sets.by_clients[clients])
    rows = []
    for (name, dtype), blocks in answered.items():
        off = answered.get(("off", dtype))
        own = paired(blocks, off) if off is not None else {}
        rows.append(
            {
                "name": name,
                "clients": clients if plan.rate is None else None,
                "rate": plan.rate,
                "dtype": dtype,
                **figures(blocks, plan.goal),
                **{f"{key.replace('ratio', 'ratio_to_off')}": value for key, value in own.items()},
                "ratio_to": {
                    f"{base} {its}": paired(blocks, others)["ratio"]
                    for (base, its), others in answered.items()
                    if base in BASES and (base, its) != (name, dtype)
                },
                **verdicts[name, dtype],
            }
        )
    return rows
