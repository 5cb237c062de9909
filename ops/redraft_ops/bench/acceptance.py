"""`redraft bench --acceptance 0.4,0.6,0.8`: speed at a chosen acceptance, in process, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from redraft_models.loading import ModelPair
from redraft_serving.settings import ServingSettings

from redraft_ops.bench import assistant
from redraft_ops.bench.answers import Ask, Block
from redraft_ops.bench.controlled import KnownAnswers, install
from redraft_ops.bench.engine import EngineRunner
from redraft_ops.bench.equality import NEAR_TIE, compare
from redraft_ops.bench.figures import figures, paired
from redraft_ops.bench.interleave import Interleaved, Lane, blocks_of, run_interleaved
from redraft_ops.bench.library import Library, logit_gap
from redraft_ops.bench.plan import BenchPlan, Configuration

REPEATS = 3
"""How often a block is run again in which rounding took an answer that was not known yet."""
Told = Callable[[], None]


@dataclass(frozen=True)
class ControlledLane:
    """One configuration at one acceptance; None where nothing is proposed."""

    configuration: Configuration
    acceptance: float | None

    @property
    def domain(self) -> str:
        """The policy counts by domain, so each acceptance has its own."""
        return f"acceptance-{self.acceptance}"


def lanes_of(compare: Sequence[Configuration], rates: Sequence[float]) -> list[ControlledLane]:
    """Plain decoding once, everything that speculates once per acceptance."""
    plain = [ControlledLane(one, None) for one in compare if _is_plain(one)]
    return plain + [ControlledLane(one, rate) for rate in rates for one in compare if not _is_plain(one)]


def _is_plain(one: Configuration) -> bool:
    return one.setting == 0 or one.name in ("generate", "continuous_batching")


class Controlled:
    """One pair, one engine and the library beside it, with known answers between them."""

    def __init__(
        self, pair: ModelPair, serving: ServingSettings, plan: BenchPlan, rates: Sequence[float]
    ) -> None:
        most = max(serving.max_speculative_tokens, plan.most_speculative_tokens)
        own = {"max_num_seqs": max(plan.clients), "max_speculative_tokens": most, "prefix_cache_mb": 0}
        settings = serving.model_copy(update={**own, "proposers": ("draft",)})
        self.pair, self.plan, self.answers = pair, plan, KnownAnswers(pair.vocab_size)
        self._all = self.lanes = lanes_of(plan.compare, rates)
        self.runner = EngineRunner(pair, settings)
        self.library = Library(pair, plan.k)
        domains = {lane.domain: lane.acceptance for lane in self.lanes if lane.acceptance is not None}
        install(self.runner.engine, self.answers, domains)

    def run(
        self, asks: Sequence[Ask], warm_up: Sequence[Ask], clients: int, deadline: float, told: Told
    ) -> Interleaved:
        """Record the plain answers, warm up, then take turns."""
        blocks = blocks_of(asks, self.plan.block_size(clients))
        self.lanes = [lane for lane in self._all if clients == 1 or lane.configuration.name != "assisted"]
        everything = [*warm_up, *asks] if warm_up else list(asks)
        self._learn(everything, self.runner.run(everything, clients, 0))
        lanes = [Lane(lane.configuration.name, "", self._answering(lane, clients)) for lane in self.lanes]
        for lane in lanes if warm_up else ():
            lane.answer(warm_up)
        return run_interleaved(lanes, blocks, deadline, told, time.monotonic)

    def _learn(self, asks: Sequence[Ask], block: Block) -> None:
        for ask, answer in zip(sorted(asks, key=lambda ask: ask.index), block.answers, strict=True):
            self.answers.learn(ask.ids, answer.ids)

    def _answering(self, lane: ControlledLane, clients: int) -> Callable[[Sequence[Ask]], Block]:
        def once(asks: Sequence[Ask]) -> Block:
            if lane.configuration.kind == "engine":
                return self.runner.run(asks, clients, lane.configuration.setting, lane.domain)
            with torch.inference_mode(), assistant.controlled(self.pair, self.answers, lane.acceptance):
                block: Block = getattr(self.library, lane.configuration.name)(asks, clients)
                return block

        def answer(asks: Sequence[Ask]) -> Block:
            for _ in range(REPEATS):
                self.answers.missed = 0
                block = once(asks)
                self._learn(asks, block)
                if not self.answers.missed:
                    break
            return block

        return answer


def rows_of(
    controlled: Controlled, asks: Sequence[Ask], found: Interleaved, clients: int, dtype: str
) -> list[dict[str, Any]]:
    """Figures of every lane, with its speed over plain decoding on the same prompts."""
    answered = list(zip(controlled.lanes, found.blocks, strict=True))
    off = next((blocks for lane, blocks in answered if lane.configuration.name == "off"), None)
    module, by_index = controlled.pair.target.module, {ask.index: ask for ask in asks}
    rows = []
    for lane, blocks in answered:
        row = {
            "name": lane.configuration.name,
            "acceptance": lane.acceptance,
            "clients": clients,
            "dtype": dtype,
        }
        row |= figures(blocks, controlled.plan.goal)
        if off is not None:
            row |= {key.replace("ratio", "ratio_to_off"): value for key, value in paired(blocks, off).items()}
            own, plain = ([answer for block in side for answer in block.answers] for side in (blocks, off))
            compared = compare(own, plain, by_index, NEAR_TIE[dtype], partial(logit_gap, module))
            row |= {"equal": compared.equal, "near_ties": compared.near_ties}
        rows.append(row)
    return rows
