"""Which versions of a domain matter to a glance: champion, canary, newest, and the stream's cursor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from redraft_models.registry_names import APPROVED, CANARY, RUNNING, STATUS, Aliases

CURSOR_TAG = "stream_last_id"
DELETED_STAGE = "Deleted_Internal"
"""What MLflow's database calls the stage of a version that was deleted."""


@dataclass(frozen=True)
class Version:
    """One version with its tags."""

    number: int
    created_ms: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def canary_runs(self) -> bool:
        """An approved candidate that serves a share of the traffic."""
        return self.tags.get(CANARY) == RUNNING and self.tags.get(STATUS) == APPROVED

    @property
    def has_cursor(self) -> bool:
        """A training round made it, and says how far it read."""
        return "-" in self.tags.get(CURSOR_TAG, "")


@dataclass(frozen=True)
class DomainVersions:
    """The registry's part of a domain's row. All None: the domain has no version."""

    champion: Version | None = None
    previous: Version | None = None
    canary: Version | None = None
    newest: Version | None = None
    cursor: Version | None = None


def chosen(versions: Iterable[Version], aliases: Mapping[str, int]) -> DomainVersions:
    """Pick from versions, of which each one that matters is there; order and repeats do not matter."""
    by_number = {one.number: one for one in versions}
    ordered: Sequence[Version] = [by_number[number] for number in sorted(by_number, reverse=True)]
    names = Aliases()
    return DomainVersions(
        champion=by_number.get(aliases.get(names.champion, 0)),
        previous=by_number.get(aliases.get(names.previous, 0)),
        canary=next((one for one in ordered if one.canary_runs), None),
        newest=next(iter(ordered), None),
        cursor=next((one for one in ordered if one.has_cursor), None),
    )
