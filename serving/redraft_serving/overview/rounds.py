"""Versions of a domain as rows that people read: what each round decided, why, and what followed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from redraft_models.registry import VersionInfo

_NUMBERS = ("acceptance_rate", "champion_acceptance_rate", "gain", "gain_ci_low", "gain_ci_high")
_COUNTS = ("heldout_requests", "heldout_tokens")
_WORDS = ("round_id", "parent_version", "champion_before", "rollback_reason", "adopted_from")
_CANARY = "canary"


def round_row(info: VersionInfo) -> dict[str, Any]:
    """One version. Measured rates are those of the held-out comparison; what nobody tagged is None."""
    tags = info.tags
    return {
        "version": info.version,
        "created_ms": info.created_ms or None,
        "decision": tags.get("decision") or info.validation_status,
        "validation_status": info.validation_status,
        "reason": tags.get("decision_reason"),
        **{name: number(tags.get(name)) for name in _NUMBERS},
        **{name: _count(tags.get(name)) for name in _COUNTS},
        **{name: tags.get(name) for name in _WORDS},
        "promoted_ms": _moment(tags.get("promoted_at")),
        "rolled_back_ms": _moment(tags.get("rolled_back_at")),
        "canary": {key: value for key, value in tags.items() if key.startswith(_CANARY)},
    }


def moves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """When versions became champion and when they were left, newest first."""
    kinds = (("promoted", "promoted_ms", "reason"), ("rolled back", "rolled_back_ms", "rollback_reason"))
    found = [
        {"time_ms": row[moment], "move": move, "version": row["version"], "reason": row[why]}
        for row in rows
        for move, moment, why in kinds
        if row[moment] is not None
    ]
    return sorted(found, key=lambda move: -move["time_ms"])


def number(text: str | None) -> float | None:
    """The finite number that a tag holds, if it does."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(text: str | None) -> int | None:
    value = number(text)
    return None if value is None else round(value)


def _moment(text: str | None) -> int | None:
    """Milliseconds since 1970 of a tag's ISO time."""
    try:
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
