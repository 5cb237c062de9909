"""Everything that a glance needs, asked for at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redraft_ops.glance.registry import versions_of
from redraft_ops.glance.serving import Serving, ask_serving
from redraft_ops.glance.versions import DomainVersions
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from redraft_queue.heartbeat import SignOfLife
    from redraft_queue.schedule import ScheduleView
    from redraft_queue.stream import Backlog


@dataclass(frozen=True)
class Glance:
    """What was found, by domain."""

    domains: Sequence[str]
    serving: Serving
    versions: Mapping[str, DomainVersions]
    backlogs: Mapping[str, Backlog]
    schedules: Mapping[str, ScheduleView]
    dead: Mapping[str, int] = field(default_factory=dict)
    """Entries of the stream that could not be used."""
    signs: Sequence[SignOfLife] = ()


def gather(stack: Stack, wanted: Sequence[str] | None, url: str | None) -> Glance:
    """Ask serving, Redis and the registry.

    Raises ServerUnreachable, StreamUnavailable, RegistryUnavailable or RegistryError, within seconds. A
    serving worker that does not answer is only remarked on, unless its address was given.
    """
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask_serving, stack.settings, url)
        stack.require_redis()
        stream = stack.stream()
        known = {*stack.settings.domains, *stack.settings.shared_drafts, *stream.domains()}
        if wanted:
            versions = versions_of(stack, _lenders(stack, wanted))
            serving = asked.result()
            domains: Sequence[str] = list(wanted)
        else:
            serving = asked.result()
            domains = sorted(known | set(serving.drafts))
            versions = versions_of(stack, _lenders(stack, domains))
    return _with_redis(stack, domains, serving, versions)


def _lenders(stack: Stack, domains: Sequence[str]) -> list[str]:
    """The domains whose versions serve these."""
    return sorted({stack.settings.shared_drafts.get(domain, domain) for domain in domains})


def _with_redis(
    stack: Stack, domains: Sequence[str], serving: Serving, versions: Mapping[str, DomainVersions]
) -> Glance:
    from redraft_queue.heartbeat import heartbeats
    from redraft_queue.schedule import schedule_of
    from redraft_queue.stream import connect

    queue, stream = stack.settings.queue, stack.stream()
    client = connect(stack.redis_url, queue)
    return Glance(
        domains=domains,
        serving=serving,
        versions={d: versions.get(stack.settings.shared_drafts.get(d, d), DomainVersions()) for d in domains},
        backlogs={d: stream.backlog(d, *_cursor(versions.get(d, DomainVersions()))) for d in domains},
        schedules={d: schedule_of(client, d, queue) for d in domains},
        dead={d: stream.dead_length(d) for d in domains},
        signs=heartbeats(client),
    )


def _cursor(versions: DomainVersions) -> tuple[str | None, int, int]:
    tags = versions.cursor.tags if versions.cursor else {}
    numbers = (tags.get(f"stream_last_{name}", "") for name in ("ordinal", "tokens"))
    ordinal, tokens = (int(text) if text.isdigit() else 0 for text in numbers)
    return tags.get("stream_last_id"), ordinal, tokens
