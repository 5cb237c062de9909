"""Histograms of requests: what they count, and that waiting, reading and decoding stand apart."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry
from redraft_serving.engine.interface import (
    Emission,
    EmissionSink,
    GenerationRequest,
    RequestStatistics,
)
from redraft_serving.http.generation import Generation, Output
from redraft_serving.http.latency import Latencies

from .scripted import ScriptedEngine

TIMES = RequestStatistics(rounds=3, emitted=5, queue_seconds=0.5, prefill_seconds=0.25, decode_seconds=2.0)
LABELS = {"model_name": "toy", "engine": "0"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def observe(registry: CollectorRegistry, *outputs: Output, first: float | None = 100.2) -> None:
    """A finished request that was submitted at 100.0, with these choices."""

    async def make() -> Generation:
        requests = [GenerationRequest("r", "default", (3,), 5)] * len(outputs)
        return Generation(ScriptedEngine(), requests)

    generation = asyncio.run(make())
    generation.submitted, generation.first_token = 100.0, first
    generation.outputs = list(outputs)
    Latencies(registry, "toy").observe(generation)


def of(registry: CollectorRegistry, name: str) -> tuple[float | None, float | None]:
    """(count, sum) of a histogram."""
    values = (registry.get_sample_value(f"vllm:{name}_seconds_{part}", LABELS) for part in ("count", "sum"))
    count, total = values
    return count, total


def output(*arrivals: tuple[float, int], statistics: RequestStatistics | None = TIMES) -> Output:
    """A choice that got so many tokens at these times."""
    made = Output(finish_reason="stop" if statistics else None, statistics=statistics)
    for now, tokens in arrivals:
        made.arrive(now)
        made.token_ids.extend([4] * tokens)
    return made


def test_phases_of_each_choice_stand_apart(registry: CollectorRegistry) -> None:
    observe(registry, output((100.2, 1)), output((100.3, 1)))
    assert of(registry, "request_queue_time") == (2, 1.0)
    assert of(registry, "request_prefill_time") == (2, 0.5)
    assert of(registry, "request_decode_time") == (2, 4.0)
    assert of(registry, "time_to_first_token") == (1, pytest.approx(0.2))


def test_gaps_are_real_ones_not_their_mean(registry: CollectorRegistry) -> None:
    """Five tokens in three rounds, with one long pause: the pause is seen, the mean is told beside it."""
    observe(registry, output((100.2, 1), (100.23, 2), (101.2, 2)))
    assert of(registry, "inter_token_latency") == (2, pytest.approx(1.0))
    assert of(registry, "request_time_per_output_token") == (1, pytest.approx(0.25))
    within = registry.get_sample_value("vllm:inter_token_latency_seconds_bucket", {**LABELS, "le": "0.05"})
    beyond = registry.get_sample_value("vllm:inter_token_latency_seconds_bucket", {**LABELS, "le": "0.75"})
    assert (within, beyond) == (1, 1)


def test_choices_do_not_mix_their_gaps(registry: CollectorRegistry) -> None:
    """Two choices that arrive in turn have their own gaps of one second, not common ones of half."""
    observe(registry, output((100.2, 1), (101.2, 1)), output((100.7, 1), (101.7, 1)))
    assert of(registry, "inter_token_latency") == (2, pytest.approx(2.0))


def test_a_request_that_ended_early_counts_what_it_got(registry: CollectorRegistry) -> None:
    observe(registry, output((100.2, 1), (100.4, 1), statistics=None))
    assert of(registry, "request_queue_time")[0] == 0
    assert of(registry, "inter_token_latency")[0] == 1
    assert of(registry, "e2e_request_latency")[0] == 1


def test_a_request_without_a_token_counts_nowhere(registry: CollectorRegistry) -> None:
    observe(registry, output(), first=None)
    names = ("time_to_first_token", "inter_token_latency", "request_queue_time", "e2e_request_latency")
    assert [of(registry, name)[0] for name in names] == [0] * 4


class PausingEngine(ScriptedEngine):
    """Emits a token at once, two together after a pause, then the end without any."""

    def submit(self, request: GenerationRequest, sink: EmissionSink) -> None:
        async def emit() -> None:
            sink(Emission("a ", (3,)))
            await asyncio.sleep(0.1)
            sink(Emission("b c", (4, 5)))
            await asyncio.sleep(0.1)
            sink(Emission("", (), finish_reason="length", statistics=TIMES))

        self.task = asyncio.get_running_loop().create_task(emit())


def test_a_generation_measures_the_arrivals_of_tokens() -> None:
    """An end without tokens is no arrival."""

    async def run() -> Output:
        generation = Generation(PausingEngine(), [GenerationRequest("r", "default", (3,), 5)])
        generation.submit()
        await generation.collect()
        return generation.outputs[0]

    begun = time.monotonic()
    made = asyncio.run(run())
    assert made.finish_reason == "length"
    (gap,) = made.gaps
    assert 0.09 <= gap <= time.monotonic() - begun
