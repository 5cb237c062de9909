"""How long requests took, as vLLM's histograms: waiting, reading the prompt and decoding apart."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Histogram

from redraft_serving.engine.interface import RequestStatistics
from redraft_serving.http.generation import Generation, Output
from redraft_serving.overview.times import DecodeTimes

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
_END_TO_END = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
_PHASE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, *_END_TO_END)


class Latencies:
    """Histograms of requests that are over, in seconds.

    What a client waits for is measured where its answer leaves; the phases of a choice by the engine.
    """

    def __init__(
        self, registry: CollectorRegistry, model_name: str, times: DecodeTimes | None = None
    ) -> None:
        self._times = times if times is not None else DecodeTimes()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(
                f"vllm:{name}_seconds", text, ["model_name", "engine"], registry=registry, buckets=buckets
            )
            return made.labels(model_name, "0")

        self._first = histogram("time_to_first_token", "Time to the first token.", _FIRST_TOKEN)
        self._next = histogram("inter_token_latency", "Time between arrivals of tokens.", _INTER_TOKEN)
        text = "Mean time per token after the first, of each choice."
        self._mean = histogram("request_time_per_output_token", text, _INTER_TOKEN)
        self._whole = histogram("e2e_request_latency", "Time of whole requests.", _END_TO_END)
        self._queue = histogram("request_queue_time", "Time that choices waited for a slot.", _PHASE)
        self._prefill = histogram("request_prefill_time", "Time from the slot to the prompt's end.", _PHASE)
        self._decode = histogram(
            "request_decode_time", "Time from the prompt's end to the last token.", _PHASE
        )

    def observe(self, generation: Generation) -> None:
        """Count one request that is over, however it ended; the phases of choices with a whole answer."""
        if generation.first_token is None:
            return
        self._first.observe(generation.first_token - generation.submitted)
        self._whole.observe(time.monotonic() - generation.submitted)
        for output in generation.outputs:
            self._count_gaps(output)
            if output.statistics is not None and output.finish_reason in ("stop", "length"):
                self._count_phases(output.statistics)
                self._times.add(generation.requests[0].domain, output.statistics)

    def _count_gaps(self, output: Output) -> None:
        for gap in output.gaps:
            self._next.observe(gap)
        if len(output.token_ids) > 1:
            self._mean.observe(sum(output.gaps) / (len(output.token_ids) - 1))

    def _count_phases(self, found: RequestStatistics) -> None:
        self._queue.observe(found.queue_seconds)
        self._prefill.observe(found.prefill_seconds)
        self._decode.observe(found.decode_seconds)
