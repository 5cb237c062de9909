"""`redraft bench --profile`: where a round's time goes, and how near a step is to the memory's own limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from redraft_models.loading import ModelPair
from redraft_serving.engine.interface import EngineStatistics
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings

from redraft_ops.bench.answers import Ask
from redraft_ops.bench.engine import EngineRunner
from redraft_ops.bench.figures import median
from redraft_ops.bench.machine import step_bytes
from redraft_ops.bench.plan import BenchPlan, Configuration

PHASES = ("verify", "draft", "rest")
"""Parts of a round: the target's pass, the draft's, everything else. Prompts are read between rounds."""
HEAD_REPEATS = 15


def profile(
    pair: ModelPair,
    serving: ServingSettings,
    by_clients: Mapping[int, Sequence[Ask]],
    warm_up: Sequence[Ask],
    plan: BenchPlan,
    dtype: str,
    gb_per_second: float,
    deadline: float,
    told: Callable[[], None],
) -> list[dict[str, Any]]:
    """One row per configuration of the engine and number of clients. Past `deadline` none begins."""
    most = max(serving.max_speculative_tokens, plan.most_speculative_tokens)
    own = {"max_num_seqs": max(plan.clients), "max_speculative_tokens": most, "prefix_cache_mb": 0}
    floor = 1000 * step_bytes(pair.target.module) / (gb_per_second * 1e9)
    rows: list[dict[str, Any]] = []
    runner = EngineRunner(pair, serving.model_copy(update=own))
    count = RoundCount(runner.engine)
    with runner:
        for (clients, asks), one in product(by_clients.items(), profiled(plan)):
            if time.monotonic() >= deadline:
                return rows
            if warm_up:
                runner.run(warm_up, clients, one.setting)
            before, begun = runner.engine.statistics(), count.snapshot()
            runner.run(asks, clients, one.setting)
            found = shares(before, runner.engine.statistics(), count.since(begun))
            head = head_ms(pair, round(found["positions"] or 1))
            row = {"name": one.name, "clients": clients, "dtype": dtype, **found, "head_ms": head}
            rows.append({**row, **_floor(row, floor)})
            told()
    return rows


def profiled(plan: BenchPlan) -> list[Configuration]:
    """What is compared and runs in an engine of ours."""
    return [one for one in plan.compare if one.kind == "engine"]


class RoundCount:
    """Counts the rounds of an engine's whole batch, and the rows in them: the engine's own counts are by row
    and leave plain rounds out. Made before the engine is started.
    """

    def __init__(self, engine: LocalEngine) -> None:
        self.rounds, self.rows = 0, 0
        inner: Any = engine.parts.rounds
        self._run = inner.run
        inner.run = self

    def __call__(self, rows: Sequence[Any]) -> Any:
        """A round."""
        self.rounds, self.rows = self.rounds + 1, self.rows + len(rows)
        return self._run(rows)

    def snapshot(self) -> tuple[int, int]:
        """(rounds, rows in them) until now."""
        return self.rounds, self.rows

    def since(self, begun: tuple[int, int]) -> tuple[int, int]:
        """(rounds, rows in them) after a snapshot."""
        return self.rounds - begun[0], self.rows - begun[1]


def shares(before: EngineStatistics, after: EngineStatistics, counted: tuple[int, int]) -> dict[str, Any]:
    """Times per round between two snapshots, in milliseconds, and their shares of a round.

    `counted`: rounds of the batch in between, and the rows in them.
    """
    spent = {phase: after.seconds.get(phase, 0.0) - before.seconds.get(phase, 0.0) for phase in PHASES}
    total = sum(spent.values())
    emitted = sum(after.emitted.values()) - sum(before.emitted.values())
    rounds, rows = counted
    positions = rows + after.proposed - before.proposed
    known = rounds > 0 and total > 0
    return {
        "rounds": rounds,
        "rows_per_round": rows / rounds if rounds else None,
        "tokens_per_round": emitted / rounds if rounds else None,
        "positions": positions / rounds if rounds else None,
        "round_ms": 1000 * total / rounds if known else None,
        **{f"{phase}_ms": 1000 * spent[phase] / rounds if known else None for phase in PHASES},
        **{f"{phase}_share": spent[phase] / total if known else None for phase in PHASES},
        "prefill_seconds": after.seconds.get("prefill", 0.0) - before.seconds.get("prefill", 0.0),
    }


def _floor(row: Mapping[str, Any], floor_ms: float) -> dict[str, float | None]:
    """Bytes over bandwidth of one step, and how many times as long the target's pass took."""
    verify = row["verify_ms"]
    return {"floor_ms": floor_ms, "verify_over_floor": verify / floor_ms if verify is not None else None}


def head_ms(pair: ModelPair, rows: int) -> float | None:
    """The target's head alone, by torch's own product over so many positions: a part of `verify_ms`."""
    head = pair.target.module.get_output_embeddings()
    if head is None:
        return None
    hidden = torch.zeros(
        max(1, rows), head.weight.shape[1], dtype=head.weight.dtype, device=head.weight.device
    )
    times = []
    with torch.inference_mode():
        for repeat in range(HEAD_REPEATS + 1):
            started = time.perf_counter()
            torch.nn.functional.linear(hidden, head.weight)
            if hidden.is_cuda:
                torch.cuda.synchronize()
            if repeat:
                times.append(time.perf_counter() - started)
    value = median(times)
    return None if value is None else 1000 * value
