"""What the policy makes of a domain, for the answers of its requests."""

from __future__ import annotations

import time
from typing import Any

from redraft_serving.engine.interface import DraftStatistics, Engine
from redraft_serving.http.drafts import champions, policy_card

_SHARE = 0.01
"""Share of time that looking may take."""


class Policies:
    """The engine's reports by domain, taken anew as often as that costs next to nothing.

    A report takes about 0.1 ms per domain: an answer's is milliseconds old with one domain, and a few
    seconds with hundreds. For one thread.
    """

    def __init__(self, engine: Engine, share: float = _SHARE) -> None:
        self._engine = engine
        self._share = share
        self._drafts: dict[str, DraftStatistics] = {}
        self._due = 0.0

    def card(self, domain: str) -> dict[str, Any] | None:
        """As `policy` in GET /v1/drafts; None where the engine has no policy, or not met the domain yet."""
        if domain not in self._drafts or time.monotonic() >= self._due:
            self._look()
        draft = self._drafts.get(domain)
        return None if draft is None or draft.policy is None else policy_card(draft.policy)

    def _look(self) -> None:
        started = time.monotonic()
        self._drafts = {draft.domain: draft for draft in champions(self._engine.statistics().drafts)}
        ended = time.monotonic()
        self._due = ended + (ended - started) / self._share
