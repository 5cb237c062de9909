"""Live acceptance of all serving workers, from their heartbeats, which other versions write too."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from redraft_queue.due import Acceptance
from redraft_queue.heartbeat import SignOfLife

SERVING = "serving"
"""Role of a serving worker's heartbeat."""
_STALE_SECONDS = 600.0
"""Averages move with tokens alone: a worker that gets no more of a domain goes on showing its last fall."""


def merged(signs: Iterable[SignOfLife]) -> dict[str, Acceptance]:
    """Each domain's moving averages over all serving workers that it has kept busy lately, weighted by their
    tested tokens.
    """
    parts: dict[str, list[Acceptance]] = defaultdict(list)
    for sign in signs:
        if sign.role == SERVING:
            for domain, found in _mapping(sign.details, "acceptance").items():
                part = _acceptance(found)
                if part is not None:
                    parts[domain].append(part)
    return {domain: _mean(found) for domain, found in parts.items()}


def on_trial(signs: Iterable[SignOfLife]) -> set[str]:
    """Domains of which some serving worker has a challenger on trial."""
    serving = (sign for sign in signs if sign.role == SERVING)
    return {domain for sign in serving for domain in _mapping(sign.details, "challengers")}


def _mapping(details: Any, name: str) -> Mapping[str, Any]:
    found = details.get(name) if isinstance(details, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _acceptance(found: Any) -> Acceptance | None:
    try:
        part = Acceptance(float(found["short"]), float(found["long"]), int(found["tested"]))
        idle_seconds = float(found.get("idle_seconds", 0.0))
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
        return None
    rates = all(math.isfinite(rate) and 0 <= rate <= 1 for rate in (part.short, part.long))
    return part if rates and part.tested > 0 and not idle_seconds > _STALE_SECONDS else None


def _mean(parts: list[Acceptance]) -> Acceptance:
    tested = sum(part.tested for part in parts)
    short = sum(part.short * part.tested for part in parts) / tested
    return Acceptance(short, sum(part.long * part.tested for part in parts) / tested, tested)
