"""Every process's last sign of life, also of one that fell silent, and which version each serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redraft_queue import load
from redraft_queue.heartbeat import SignOfLife

Version = int | str

FORGET_SECONDS = 3600.0
"""A silent worker is shown, and counted in /metrics, for so long."""
BEHIND_SECONDS = 20.0
"""A worker follows its champion within a few polls; one that takes longer than this lags."""

_SIGNALS = {load.ROLE}
"""Roles under which a worker says something else beside its sign of life."""

_Place = tuple[str, str, int]


@dataclass(slots=True)
class _Seen:
    sign: SignOfLife
    at: float
    """When its time last changed, by our clock: theirs may be wrong."""
    first: float
    """When it was first heard of."""
    gone: bool = False
    behind: dict[str, float] = field(default_factory=dict)
    """Since when another version than the champion serves, by domain."""


class Workers:
    """Remembers signs of life between two looks. One that says goodbye is forgotten at once."""

    def __init__(self, ttl_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._seen: dict[_Place, _Seen] = {}
        self._lock = threading.Lock()

    def look(self, signs: Sequence[SignOfLife], champions: Mapping[str, Version]) -> None:
        """Take in all signs that there are now, and the registry's champions as far as they are known."""
        now = self._clock()
        workers = [sign for sign in signs if sign.role not in _SIGNALS]
        present = {(sign.role, sign.host, sign.pid): sign for sign in workers}
        with self._lock:
            for place, sign in present.items():
                seen = self._seen.get(place)
                if seen is None or seen.sign.time != sign.time:
                    first, behind = (seen.first, seen.behind) if seen else (now, {})
                    self._seen[place] = _Seen(sign, now, first, behind=behind)
                self._compare(self._seen[place], champions, now)
            for place, seen in list(self._seen.items()):
                if place not in present:
                    self._missing(place, seen, now)

    def rows(self) -> list[dict[str, Any]]:
        """One row per process, sorted by role, host and pid. `behind`: domains in which it lags."""
        now = self._clock()
        with self._lock:
            return [_row(place, seen, now) for place, seen in sorted(self._seen.items(), key=lambda i: i[0])]

    def _missing(self, place: _Place, seen: _Seen, now: float) -> None:
        """An expired key falls silent; one that went before it could expire was taken back by its process.

        One that another of its role and host came after was restarted.
        """
        goodbye = not seen.gone and now - seen.at < self._ttl_seconds
        others = (one for other, one in self._seen.items() if other[:2] == place[:2])
        if goodbye or now - seen.at > FORGET_SECONDS or any(one.first > seen.at for one in others):
            del self._seen[place]
            return
        seen.gone = True
        seen.behind = {}

    def _compare(self, seen: _Seen, champions: Mapping[str, Version], now: float) -> None:
        served = _versions(seen.sign, "drafts")
        wrong = {d for d, version in served.items() if d in champions and champions[d] != version}
        seen.behind = {domain: seen.behind.get(domain, now) for domain in wrong}


def _row(place: _Place, seen: _Seen, now: float) -> dict[str, Any]:
    role, host, pid = place
    return {
        "role": role,
        "host": host,
        "pid": pid,
        "age_seconds": round(now - seen.at, 1),
        "silent": seen.gone,
        "drafts": _versions(seen.sign, "drafts"),
        "challengers": _versions(seen.sign, "challengers"),
        "behind": sorted(d for d, since in seen.behind.items() if now - since >= BEHIND_SECONDS),
        "started_ms": _started(seen.sign),
    }


def _versions(sign: SignOfLife, key: str) -> dict[str, Version]:
    """Versions by domain from a sign's details, which any program may have written."""
    found = sign.details.get(key) if isinstance(sign.details, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(domain): version for domain, version in found.items() if isinstance(version, int | str)}


def _started(sign: SignOfLife) -> int | None:
    found = sign.details.get("started_ms") if isinstance(sign.details, Mapping) else None
    return found if isinstance(found, int) else None
