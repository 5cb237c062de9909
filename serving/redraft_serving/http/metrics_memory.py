"""The part of /metrics that tells where the engine's memory goes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from redraft_serving.engine.interface import MemoryReport
from redraft_serving.http.families import gauge


def memory_families(report: MemoryReport) -> Iterator[Metric]:
    """Bytes by part (their sum is what the engine holds) and per slot; none where the engine tells none."""
    known = report != MemoryReport()
    parts = {
        "target": report.target,
        "draft": report.draft,
        "target_cache": report.slots * report.target_cache_per_slot,
        "draft_cache": report.slots * report.draft_cache_per_slot,
        "prefix_cache": report.prefix_cache,
    }
    yield gauge("redraft_memory_bytes", "Memory held, by part.", _by("part", parts if known else {}))
    slots = {"target": report.target_cache_per_slot, "draft": report.draft_cache_per_slot}
    text = "Memory of one row's place in the caches."
    yield gauge("redraft_slot_bytes", text, _by("model", slots if known else {}))
    yield gauge("redraft_slots", "Rows that have a place in the caches.", [({}, report.slots or None)])
    limit = report.prefix_cache_limit if known else None
    yield gauge("redraft_prefix_cache_limit_bytes", "Most that the prefix cache may hold.", [({}, limit)])


def _by(label: str, values: dict[str, int]) -> list[tuple[dict[str, str], int]]:
    return [({label: key}, value) for key, value in values.items()]
