"""Which domain a request belongs to, and which domains this worker has met."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

from redraft_serving.http.errors import BadRequest

DOMAIN_HEADER = "X-Redraft-Domain"
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Domains:
    """The domains of this worker: known ones from the start, others as requests name them, up to a limit.

    Each domain costs a watched alias, label values on /metrics and, with an adapter, weights in memory: a
    header alone must not make them grow without end.
    """

    def __init__(self, default: str, known: Iterable[str] = (), limit: int = 256) -> None:
        self.default = default
        self._limit = limit
        self._lock = threading.Lock()
        self._names = dict.fromkeys([default, *known])

    def resolve(self, header: str | None) -> str:
        """The domain that a request names (the default one where it names none). Raises BadRequest."""
        if header is None or header == "":
            return self.default
        if not _DOMAIN.fullmatch(header):
            raise BadRequest(
                f"{DOMAIN_HEADER} {header!r:.80} is no domain name: 1 to 64 letters, digits, '.', '_', '-', "
                "beginning with a letter or digit.",
                DOMAIN_HEADER,
            )
        with self._lock:
            if header not in self._names:
                if len(self._names) >= self._limit:
                    raise BadRequest(
                        f"This worker serves {self._limit} domains already, and {header!r} is none of them.",
                        DOMAIN_HEADER,
                    )
                self._names[header] = None
        return header

    def names(self) -> list[str]:
        """All of them, in the order they were met."""
        with self._lock:
            return list(self._names)
