"""How long requests took, as vLLM's histograms."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Histogram

from redraft_serving.http.generation import Generation

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
_END_TO_END = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)


class Latencies:
    """Histograms of finished requests, in seconds, as clients of the server's loop see them."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ["model_name", "engine"], registry=registry, buckets=buckets)
            return made.labels(model_name, "0")

        self._first = histogram("vllm:time_to_first_token_seconds", "Time to the first token.", _FIRST_TOKEN)
        self._next = histogram("vllm:inter_token_latency_seconds", "Mean time between tokens.", _INTER_TOKEN)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Time of whole requests.", _END_TO_END)

    def observe(self, generation: Generation) -> None:
        """Count one request that is over, however it ended."""
        if generation.first_token is None or generation.last_token is None:
            return
        self._first.observe(generation.first_token - generation.submitted)
        self._whole.observe(time.monotonic() - generation.submitted)
        gaps = generation.completion_tokens - len(generation.outputs)
        if gaps > 0:
            self._next.observe((generation.last_token - generation.first_token) / gaps)
