"""`redraft bench --during-training`: time per emitted token beside a training round, and without one.

Each configuration answers every block twice, in turn: while a real training process stands still, and while
it works. So both meet the same machine, the same prompts and the same draft.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redraft_queue.stream import SampleStream, connect

from redraft_ops.bench.answers import Ask, Block
from redraft_ops.bench.beside import Beside
from redraft_ops.bench.figures import figures, median, paired
from redraft_ops.bench.interleave import Interleaved, Lane, blocks_of, run_interleaved
from redraft_ops.bench.plan import BenchPlan
from redraft_ops.bench.prompts import PromptSets
from redraft_ops.bench.run import described
from redraft_ops.bench.serving import Sides, open_sides
from redraft_ops.errors import BenchFailed
from redraft_ops.progress import Phases
from redraft_ops.settings import Settings

ALONE, BESIDE = "alone", "during training"
FILL_SECONDS = 60.0
"""Longest wait for the samples of the answers that the training learns from."""
OWN_PACE_SECONDS = 10.0
"""How long the training is timed while nothing is served."""
BLOCK = 4
"""Requests before the other turn: a block has to be longer than an optimiser step."""


@dataclass
class _Pace:
    """Steps that the training made while it was let go, and the seconds of that."""

    steps: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Steps per second."""
        return self.steps / self.seconds if self.seconds else None


def run_room(
    settings: Settings, plan: BenchPlan, sets: PromptSets, tokenizer: Any, out: Path, phases: Phases
) -> dict[str, Any]:
    """The document of a run. Raises BenchFailed and what starting the workers raises."""
    plan = replace(plan, block=plan.block or min(BLOCK, plan.requests))
    started, deadline = time.monotonic(), time.monotonic() + plan.max_seconds
    rows: list[dict[str, Any]] = []
    complete, left = True, len(plan.dtypes) * len(plan.clients)
    for dtype in plan.dtypes:
        with ExitStack() as cleanup:
            one = replace(plan, dtypes=(dtype,))
            with phases.phase(f"start the worker, {dtype}"):
                sides = open_sides(settings, one, bool(tokenizer.chat_template), out, cleanup)
            training = cleanup.enter_context(_training(settings, one, sides, sets, dtype, phases, cleanup))
            own = _own_pace(training, phases)
            for clients in plan.clients:
                until = time.monotonic() + (deadline - time.monotonic()) / left
                asks = sets.by_clients[clients]
                found, pace = _measure(one, sides, training, asks, clients, until, phases)
                rows += _rows(one, found, clients, dtype, own, pace)
                complete, left = complete and found.complete, left - 1
    return {**described(settings, plan, (), complete, started), "runs": rows}


def _training(
    settings: Settings,
    plan: BenchPlan,
    sides: Sides,
    sets: PromptSets,
    dtype: str,
    phases: Phases,
    cleanup: ExitStack,
) -> Beside:
    """A training on answers that the worker has just given."""
    asks = [ask for several in sets.by_clients.values() for ask in several]
    domains = Counter(ask.domain or settings.default_domain for ask in asks)
    ((domain, count),) = domains.most_common(1)
    capturing = replace(plan, compare=(replace(plan.compare[0], capture=True),), rate=None)
    (lane,), _ = Sides(capturing, sides.workers).lanes(max(plan.clients), speculates=True)
    with phases.phase(f"collect samples to train on, {dtype}", len(asks)) as bar:
        for several in blocks_of(asks, max(plan.clients)):
            lane.answer(several)
            for _ in several:
                bar.advance()
        _wait_for(sides.redis_url, settings, domain, count)
    folder = Path(cleanup.enter_context(TemporaryDirectory(prefix="redraft-bench-training-")))
    models = settings.models.model_copy(update={"dtype": dtype})
    return Beside(settings.model_copy(update={"models": models}), sides.redis_url, domain, folder)


def _wait_for(redis_url: str, settings: Settings, domain: str, count: int) -> None:
    stream = SampleStream(connect(redis_url, settings.queue), settings.queue)
    deadline = time.monotonic() + FILL_SECONDS
    while (there := stream.position(domain).length) < count:
        if time.monotonic() > deadline:
            raise BenchFailed(f"only {there} of {count} answers became samples within {FILL_SECONDS:.0f} s")
        time.sleep(0.2)


def _own_pace(training: Beside, phases: Phases) -> _Pace:
    with phases.phase("the training's own pace"):
        pace = _Pace()
        with _Let(training, pace):
            time.sleep(OWN_PACE_SECONDS)
    return pace


class _Let:
    """`with _Let(training, pace):` the training works, and its steps are counted."""

    def __init__(self, training: Beside, pace: _Pace) -> None:
        self._training, self._pace = training, pace

    def __enter__(self) -> None:
        self._first, self._started = self._training.step, time.monotonic()
        self._training.release()

    def __exit__(self, *_: object) -> None:
        self._training.hold()
        self._pace.steps += self._training.step - self._first
        self._pace.seconds += time.monotonic() - self._started


def _measure(
    plan: BenchPlan,
    sides: Sides,
    training: Beside,
    asks: Sequence[Ask],
    clients: int,
    until: float,
    phases: Phases,
) -> tuple[Interleaved, _Pace]:
    pace = _Pace()
    lanes, _ = sides.lanes(clients, speculates=True)
    turns = [turn for lane in lanes for turn in (lane, _beside(lane, training, pace))]
    blocks = blocks_of(asks, plan.block_size(clients))
    with phases.phase(f"{clients} clients", len(turns) * len(blocks)) as bar:
        return run_interleaved(turns, blocks, until, bar.advance), pace


def _beside(lane: Lane, training: Beside, pace: _Pace) -> Lane:
    def answer(asks: Sequence[Ask]) -> Block:
        training.check()
        with _Let(training, pace):
            return lane.answer(asks)

    return Lane(lane.name, lane.dtype, answer)


def _rows(
    plan: BenchPlan, found: Interleaved, clients: int, dtype: str, own: _Pace, pace: _Pace
) -> list[dict[str, Any]]:
    rows = []
    pairs = zip(found.blocks[::2], found.blocks[1::2], strict=True)
    for one, (alone, beside) in zip(plan.compare, pairs, strict=True):
        slower = paired(alone, beside)
        for name, blocks in ((ALONE, alone), (BESIDE, beside)):
            row = {"name": one.name, "training": name, "clients": clients, "dtype": dtype}
            row |= {**figures(blocks, plan.goal), "ms_per_token": _per_token(blocks)}
            if name == BESIDE:
                row |= {f"{key.replace('ratio', 'time_ratio')}": value for key, value in slower.items()}
                row["training_pace"] = pace.rate / own.rate if pace.rate is not None and own.rate else None
            rows.append(row)
    return rows


def _per_token(blocks: Sequence[Block]) -> float | None:
    """Wall time per emitted token: the median over blocks."""
    return median([1000 * one.seconds / one.tokens for one in blocks if one.tokens])
