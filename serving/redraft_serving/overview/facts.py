"""What registry, stream and schedule say of one domain, each kept until it is said anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import redis
from redraft_models.registry import Registry
from redraft_queue.schedule import schedule_of
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import Backlog, SampleStream

from redraft_serving.overview.rounds import moves, round_row

BASE = "base"
ROUNDS = 20
"""Rounds shown."""

Version = int | str


@dataclass(frozen=True)
class Facts:
    """Of one domain. What is unknown yet is None or empty."""

    champion: Version | None = None
    previous: Version | None = None
    challenger: int | None = None
    rounds: tuple[dict[str, Any], ...] = ()
    cursor: tuple[str | None, int, int] = (None, 0, 0)
    """Stream id, ordinal and tokens up to which training rounds have read."""
    backlog: Backlog | None = None
    schedule: Mapping[str, Any] | None = None
    moves: tuple[dict[str, Any], ...] = field(default=())


def from_registry(facts: Facts, registry: Registry, domain: str, source: str) -> Facts:
    """Champion and last rounds of `source`, whose drafts serve the domain. Raises RegistryError.

    Of a domain that is served another's drafts no round trains: it has no cursor.
    """
    versions = registry.versions(source, ROUNDS)
    made = next((info for info in versions if "-" in info.tags.get("stream_last_id", "")), None)
    trained = (made or registry.cursor(source)) if versions and source == domain else None
    champion = registry.champion(source) if versions else None
    previous = registry.alias(source, registry.aliases.previous) if versions else None
    challenger = registry.alias(source, registry.aliases.challenger) if versions else None
    rounds = tuple(round_row(info) for info in versions)
    # A champion's alias that merely vanished is no way back to the base: nobody knows then.
    served_before = any(row["promoted_ms"] is not None for row in rounds)
    base = champion is None and (not served_before or registry.champion_is_base(source))
    return replace(
        facts,
        champion=champion.version if champion else BASE if base else None,
        previous=previous.version if previous else BASE if champion else None,
        challenger=challenger.version if challenger else None,
        rounds=rounds,
        cursor=_cursor(trained.tags if trained else {}),
        moves=tuple(moves(rounds)),
    )


def from_redis(
    facts: Facts, stream: SampleStream, client: redis.Redis, domain: str, settings: QueueSettings
) -> Facts:
    """Stream and schedule as they are now. Raises QueueError."""
    backlog = stream.backlog(domain, *facts.cursor)
    return replace(facts, backlog=backlog, schedule=schedule_of(client, domain, settings).to_dict())


def stream_card(backlog: Backlog | None) -> dict[str, Any] | None:
    """Samples in the stream, those no training round has read, and those trimmed before one could."""
    if backlog is None:
        return None
    return {
        "length": backlog.length,
        "unseen": backlog.unseen,
        "lost": backlog.lost,
        "new_tokens": backlog.new_tokens,
    }


def _cursor(tags: Mapping[str, str]) -> tuple[str | None, int, int]:
    ordinal, tokens = (tags.get(f"stream_last_{name}", "") for name in ("ordinal", "tokens"))
    return (
        tags.get("stream_last_id") or None,
        int(ordinal) if ordinal.isdigit() else 0,
        int(tokens) if tokens.isdigit() else 0,
    )
