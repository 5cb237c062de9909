"""How long the tokens of finished choices took, by domain: what a client waits for, in raw sums."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from redraft_serving.engine.interface import RequestStatistics


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """`seconds` from the end of the prompt to the last token, and the `tokens` after the first one."""

    seconds: float = 0.0
    tokens: int = 0


class DecodeTimes:
    """Sums since the start. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, DecodeTime] = {}

    def add(self, domain: str, found: RequestStatistics) -> None:
        """Count one choice that ended with a whole answer."""
        with self._lock:
            before = self._sums.get(domain, DecodeTime())
            tokens = before.tokens + max(0, found.emitted - 1)
            self._sums[domain] = DecodeTime(before.seconds + found.decode_seconds, tokens)

    def all(self) -> Mapping[str, DecodeTime]:
        """A copy of all sums."""
        with self._lock:
            return dict(self._sums)
