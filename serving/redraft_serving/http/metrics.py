"""GET /metrics: raw counters of the engine under vLLM's names, and redraft's own. Readers derive rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from redraft_serving.engine.interface import CHAMPION, Engine, EngineStatistics
from redraft_serving.http.domains import Domains
from redraft_serving.http.drafts import known_drafts
from redraft_serving.http.families import counter, gauge
from redraft_serving.http.metrics_loop import loop_families
from redraft_serving.http.metrics_memory import memory_families
from redraft_serving.http.metrics_policy import count_families, policy_families
from redraft_serving.overview import Overview


@dataclass(frozen=True)
class LoopCounters:
    """What capture and swap have counted; each is read at every scrape."""

    dropped: Callable[[], Mapping[str, int]] = field(default=lambda: {})
    """Samples dropped, by reason."""
    written: Callable[[], int] = field(default=lambda: 0)
    lost: Callable[[], Mapping[str, int]] = field(default=lambda: {})
    """Samples trimmed from the stream before a training round saw them, by domain."""
    swaps: Callable[[], Mapping[tuple[str, str], int]] = field(default=lambda: {})
    """Swaps by (domain, result)."""


class EngineCollector(Collector):
    """Reads the engine when scraped, so that a counter can never fall behind or be counted twice."""

    def __init__(
        self, engine: Engine, model_name: str, domains: Domains, loop: LoopCounters, overview: Overview
    ) -> None:
        self._engine = engine
        self._domains = domains
        self._labels = {"model_name": model_name, "engine": "0"}
        self._loop = loop
        self._overview = overview

    def collect(self) -> Iterator[Metric]:
        """All families, from one snapshot."""
        found = self._engine.statistics()
        yield from self._vllm(found)
        yield from self._ours(found)
        yield from self._drafts(found)
        yield from memory_families(found.memory)
        yield from self._training_loop()
        yield from loop_families(self._overview, self._domains.names())

    def describe(self) -> Iterable[Metric]:
        """Nothing: prometheus-client would scrape the engine at registration otherwise."""
        return []

    def _vllm(self, found: EngineStatistics) -> Iterator[Metric]:
        counters = {
            "vllm:spec_decode_num_drafts": ("Rounds in which the draft proposed.", found.rounds),
            "vllm:spec_decode_num_draft_tokens": ("Tokens proposed.", found.proposed),
            "vllm:spec_decode_num_accepted_tokens": ("Proposed tokens accepted.", found.accepted),
            "vllm:prompt_tokens": ("Prompt tokens processed.", found.prompt_tokens),
            "vllm:generation_tokens": ("Tokens emitted.", sum(found.emitted.values())),
            "vllm:prompt_tokens_cached": ("Prompt tokens not computed.", found.cached_prompt_tokens),
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", _looked_up(found)),
            "vllm:prefix_cache_hits": ("Prompt tokens found there.", found.cached_prompt_tokens),
        }
        for name, (text, value) in counters.items():
            yield counter(name, text, [(self._labels, value)])
        positions = [
            ({**self._labels, "position": str(position)}, value)
            for position, value in enumerate(found.accepted_per_position)
        ]
        text = "Accepted tokens by position in the proposal."
        yield counter("vllm:spec_decode_num_accepted_tokens_per_pos", text, positions)
        finished = [
            ({**self._labels, "finished_reason": key}, value) for key, value in found.finished.items()
        ]
        yield counter("vllm:request_success", "Finished choices.", finished)
        yield gauge("vllm:num_requests_running", "Choices that generate.", [(self._labels, found.running)])
        yield gauge("vllm:num_requests_waiting", "Choices that wait.", [(self._labels, found.waiting)])

    def _ours(self, found: EngineStatistics) -> Iterator[Metric]:
        yield counter("redraft_tested_tokens", "Proposed tokens compared.", [({}, found.tested)])
        positions = [({"position": str(at)}, value) for at, value in enumerate(found.tested_per_position)]
        yield counter("redraft_tested_tokens_per_pos", "Compared tokens by position.", positions)
        emitted = [({"outcome": key}, value) for key, value in found.emitted.items()]
        yield counter("redraft_emitted_tokens", "Tokens emitted, by outcome.", emitted)
        fallback = [({"reason": key}, value) for key, value in found.fallback_rows.items()]
        yield counter("redraft_fallback_rows", "Choices that went on without the draft.", fallback)
        seconds = [({"phase": key}, value) for key, value in found.seconds.items()]
        yield counter("redraft_engine_seconds", "Time of the inference thread, by phase.", seconds)
        yield gauge("redraft_requests_running", "Choices that generate.", [({}, found.running)])
        yield gauge("redraft_requests_waiting", "Choices that wait.", [({}, found.waiting)])

    def _drafts(self, found: EngineStatistics) -> Iterator[Metric]:
        drafts = known_drafts(found, self._engine, self._domains)
        yield from count_families(drafts)
        drafts = [draft for draft in drafts if draft.arm == CHAMPION]
        versions = [
            ({"domain": draft.domain}, draft.version if isinstance(draft.version, int) else 0)
            for draft in drafts
        ]
        yield gauge("redraft_draft_version", "Registry version that serves; 0 is the base draft.", versions)
        yield from policy_families(drafts)

    def _training_loop(self) -> Iterator[Metric]:
        dropped = [({"reason": key}, value) for key, value in self._loop.dropped().items()]
        yield counter("redraft_samples_dropped", "Samples that were not kept.", dropped)
        yield counter("redraft_samples_written", "Samples appended.", [({}, self._loop.written())])
        lost = [({"domain": key}, value) for key, value in self._loop.lost().items()]
        yield counter("redraft_samples_lost", "Samples trimmed before a training round saw them.", lost)
        swaps = [({"domain": key[0], "result": key[1]}, value) for key, value in self._loop.swaps().items()]
        yield counter("redraft_swaps", "Swaps of a draft, by result.", swaps)


def _looked_up(found: EngineStatistics) -> int:
    """All prompt tokens, where there is a prefix cache."""
    there = found.memory.prefix_cache_limit or found.cached_prompt_tokens
    return found.prompt_tokens if there else 0


def install_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """Serve the registry at /metrics, open to anyone who reaches the port."""

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
