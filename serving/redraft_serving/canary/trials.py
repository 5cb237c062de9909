"""The trials of one worker: which arm serves a request, what came of it, and what all workers found together.

HTTP asks `arm_of` and tells `finished`; the watcher begins, judges and ends. Without Redis, or while it is
away, arms serve on and sums are kept here, but nothing is decided.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redraft_queue.errors import QueueError
from redraft_queue.trials import TrialStore

from redraft_serving.canary.assignment import in_share
from redraft_serving.canary.cards import trial_card
from redraft_serving.canary.moments import Moments, from_dict, of_request, to_dict
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.trial import Trial
from redraft_serving.canary.verdict import Verdict, judge_canary, judge_watch
from redraft_serving.engine.interface import CHAMPION, Arm, RequestStatistics

logger = logging.getLogger(__name__)

Evidence = dict[Arm, Moments]
_MS = 1000


@dataclass(slots=True)
class _Running:
    """A trial that requests belong to now, and this worker's own sums for it."""

    trial: Trial
    share: float
    reporter: str
    """Of one stretch of this process: sums begin at zero after it, those of earlier stretches stay."""
    began: float = field(default_factory=time.monotonic)
    sums: Evidence = field(default_factory=dict)
    found: tuple[Evidence, Verdict] | None = None


class Trials:
    """Safe to share between threads. `arm_of`, `finished`, `card` and `flush` never raise.

    Args:
        settings: shares, margins and rates.
        store: the evidence of all workers; None: there is no Redis, and no trial begins.
    """

    def __init__(self, settings: CanarySettings, store: TrialStore | None = None) -> None:
        self.settings = settings
        self.store = store
        self._worker_id = f"{socket.gethostname()}:{os.getpid()}"
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._reachable = True

    def arm_of(self, domain: str, request_id: str) -> Arm:
        """The arm that serves a request: the same on every worker and every retry."""
        running = self._running.get(domain)
        if running is None or not in_share(request_id, domain, running.trial.id, running.share):
            return CHAMPION
        return running.trial.arm

    def finished(self, domain: str, arm: Arm, statistics: Sequence[RequestStatistics]) -> None:
        """Count a request that has ended, given what is known of all its choices. Once per request.

        Left out: one without a token, one that a version served which is not its arm's (a swap, or an arm
        that was not loaded), and one that began before the trial did.
        """
        running = self._running.get(domain)
        if running is None or not statistics:
            return
        expected = running.trial.version_of(arm)
        versions = {version for one in statistics for version, _ in one.draft_versions}
        lasted = max(one.queue_seconds + one.prefill_seconds + one.decode_seconds for one in statistics)
        emitted = sum(one.emitted for one in statistics)
        early = time.monotonic() - lasted < running.began
        if expected is None or versions - {expected} or not emitted or early:
            return
        request = of_request(
            sum(one.draft_tested for one in statistics),
            sum(one.draft_accepted for one in statistics),
            emitted,
            sum(one.decode_seconds for one in statistics),
        )
        with self._lock:
            running.sums[arm] = running.sums.get(arm, Moments()) + request

    def card(self, domain: str) -> dict[str, Any] | None:
        """The domain's trial as of the last look, over all workers; None where none runs."""
        running = self._running.get(domain)
        if running is None:
            return None
        with self._lock:
            sums, verdict = running.found or (dict(running.sums), None)
        return trial_card(running.trial, running.share, sums, verdict)

    def begin(self, trial: Trial) -> None:
        """Let the domain's requests belong to `trial`, whose arm must be loaded. Repeating is harmless."""
        running = self._running.get(trial.domain)
        if running is not None and running.trial.id == trial.id:
            return
        self.end(trial.domain)
        share = self.settings.share if trial.kind == "canary" else self.settings.watch_share
        self._running[trial.domain] = _Running(trial, share, f"{self._worker_id}:{uuid.uuid4().hex[:8]}")

    def end(self, domain: str) -> None:
        """All requests are the champion's again; what was measured is reported once more."""
        running = self._running.pop(domain, None)
        if running is not None:
            self._report(running)

    def flush(self) -> bool:
        """Report every trial's sums, also those that did not change: Redis may have lost them.

        False, at the first failure, where Redis is away.
        """
        return all(self._report(running) for running in list(self._running.values()))

    def judge(self, trial: Trial) -> tuple[Verdict, Evidence]:
        """What all workers' evidence says, and that evidence. Raises StreamUnavailable."""
        if self.store is None:
            raise ValueError("trials are judged where Redis is")
        found = self.store.totals(trial.domain, trial.id)
        sums = {arm: from_dict(found.get(arm, {})) for arm in (CHAMPION, trial.arm)}
        champion, other = sums[CHAMPION], sums[trial.arm]
        if trial.kind == "canary":
            seconds = time.time() - trial.started_ms / _MS if trial.started_ms else 0.0
            verdict = judge_canary(other, champion, seconds, self.settings)
        else:
            verdict = judge_watch(champion, other, self.settings)
        running = self._running.get(trial.domain)
        if running is not None and running.trial.id == trial.id:
            with self._lock:
                running.found = (sums, verdict)
        return verdict, sums

    def _report(self, running: _Running) -> bool:
        """Whether this worker's sums are in Redis now. They stay here too, for the next time."""
        with self._lock:
            sums = {str(arm): to_dict(moments) for arm, moments in running.sums.items()}
        try:
            if self.store is not None:
                self.store.report(running.trial.domain, running.trial.id, running.reporter, sums)
            self._reachable = True
        except QueueError as error:
            if self._reachable:
                logger.warning("trials go on without a decision: %s", error)
            self._reachable = False
        return self._reachable
