"""What this worker serves on each arm of each domain, what it refuses, and what it has said about it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from redraft_serving.engine.interface import CHAMPION, Arm

logger = logging.getLogger(__name__)

BASE = "base"
SWAPPED, REFUSED, FAILED = "swapped", "rejected", "failed"
_SELDOM = 20


class Served:
    """Written by the watcher's thread, read by any."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, Arm], int | str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._complaints: dict[str, str] = {}
        self._lock = threading.Lock()
        self.refused: dict[tuple[str, int], str] = {}
        """(domain, version) -> why it is never tried again."""

    def version(self, domain: str, arm: Arm = CHAMPION) -> int | str | None:
        """What serves an arm: the base draft for a champion that was never swapped, None for no arm."""
        return self._versions.get((domain, arm), BASE if arm == CHAMPION else None)

    def put(self, domain: str, arm: Arm, version: int | str) -> None:
        """An arm is served by this version now."""
        with self._lock:
            self._versions[domain, arm] = version

    def remove(self, domain: str, arm: Arm) -> None:
        """An arm is served no more."""
        with self._lock:
            self._versions.pop((domain, arm), None)

    def of_arm(self, arm: Arm) -> Mapping[str, int | str]:
        """Domain -> version, for the domains in which this arm was swapped in."""
        with self._lock:
            return {domain: version for (domain, one), version in self._versions.items() if one == arm}

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Swaps by (domain, result): swapped, rejected, failed."""
        with self._lock:
            return dict(self._counts)

    def count(self, domain: str, result: str) -> None:
        """One more swap ended like this."""
        with self._lock:
            self._counts[domain, result] += 1

    def complain(self, about: str, message: str, error: Exception | None = None) -> None:
        """Log a state once, not at every pass; with the traceback of an error that nobody expected."""
        if self._complaints.get(about) != message:
            self._complaints[about] = message
            logger.warning("%s: %s", about, message, exc_info=error)

    def content(self, about: str) -> None:
        """What was complained about is over."""
        self._complaints.pop(about, None)


class Seldom:
    """Lets a search through when it is first asked for and at each 20th time: searches cost MLflow, and the
    interpreter that serves, several times what reading an alias does.
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def due(self, domain: str) -> bool:
        """Whether to search now."""
        self._asked[domain] += 1
        return self._asked[domain] % _SELDOM == 1
