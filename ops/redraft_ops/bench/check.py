"""`redraft bench --check-equal`: greedy text with speculation on is that of plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from typing import Any

import torch
from redraft_models.loading import ModelPair
from redraft_serving.settings import ServingSettings

from redraft_ops.bench.answers import Ask, Block
from redraft_ops.bench.engine import EngineRunner
from redraft_ops.bench.equality import NEAR_TIE, Comparison, compare
from redraft_ops.bench.library import Library, logit_gap
from redraft_ops.bench.plan import BenchPlan

Told = Callable[[], None]


@dataclass(frozen=True)
class Variant:
    """One way of speculating that must not show in the text."""

    name: str
    setting: Any
    proposers: tuple[str, ...] = ("draft", "ngram", "prediction")


@dataclass(frozen=True)
class Checked:
    """One variant against plain decoding."""

    name: str
    clients: int
    dtype: str
    result: Comparison

    def row(self) -> dict[str, Any]:
        """For JSON and the table."""
        return {
            "name": self.name,
            "clients": self.clients,
            "dtype": self.dtype,
            "requests": self.result.compared,
            "near_ties": self.result.near_ties,
            "different": len(self.result.different),
            "equal": self.result.equal,
        }


def variants(k: int, most: int) -> tuple[Variant, ...]:
    """Several K, the policy's own choice, the draft and the n-gram proposer each alone."""
    fixed = sorted({1, min(2, most), min(k, most), most})
    own = [Variant(f"k{one}", one) for one in fixed]
    alone = [Variant("draft", k, ("draft",)), Variant("ngram", k, ("ngram",))]
    return (*own, Variant("auto", "auto"), *alone)


def check_equal(
    pair: ModelPair,
    serving: ServingSettings,
    by_clients: Mapping[int, Sequence[Ask]],
    plan: BenchPlan,
    dtype: str,
    deadline: float,
    told: Told = lambda: None,
) -> list[Checked]:
    """Plain decoding of the engine against transformers' own, then every variant against plain decoding with
    the same number of clients. Past `deadline` (of `time.monotonic`) no further variant begins.
    """
    most = max(plan.k, serving.max_speculative_tokens)
    own = serving.model_copy(
        update={"max_num_seqs": max(plan.clients), "max_speculative_tokens": most, "prefix_cache_mb": 0}
    )
    found: list[Checked] = []
    plain = {}
    with EngineRunner(pair, own) as runner:
        for clients, asks in by_clients.items():
            plain[clients] = runner.run(asks, clients, 0)
            told()
            found.append(_against_library(pair, asks, plain[clients], clients, dtype))
            told()
    for proposers, members in groupby(variants(plan.k, most), key=lambda variant: variant.proposers):
        settings = own.model_copy(update={"proposers": proposers})
        with EngineRunner(pair, settings) as runner:
            for variant, (clients, asks) in product(members, by_clients.items()):
                if time.monotonic() >= deadline:
                    return found
                block = runner.run(asks, clients, variant.setting)
                result = _compared(pair, asks, block, plain[clients], dtype)
                found.append(Checked(variant.name, clients, dtype, result))
                told()
    return found


def amount(plan: BenchPlan, most: int) -> int:
    """How many comparisons a dtype has; `told` is called once for each, and once per number of clients."""
    return len(plan.clients) * (1 + len(variants(plan.k, max(plan.k, most))))


def _against_library(pair: ModelPair, asks: Sequence[Ask], plain: Block, clients: int, dtype: str) -> Checked:
    with torch.inference_mode():
        reference = Library(pair, 0).generate(asks, 1)
    return Checked("off", clients, dtype, _compared(pair, asks, plain, reference, dtype))


def _compared(pair: ModelPair, asks: Sequence[Ask], found: Block, expected: Block, dtype: str) -> Comparison:
    module = pair.target.module
    return compare(
        found.answers,
        expected.answers,
        {ask.index: ask for ask in asks},
        NEAR_TIE[dtype],
        partial(logit_gap, module),
    )
