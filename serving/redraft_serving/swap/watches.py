"""The watch: the version before goes on serving a small share, so that a champion that decays is noticed.

Traffic that changes hits both arms alike. Evidence is taken in windows, so that a late decay is not diluted
by a long good time before it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from redraft_models.errors import AdapterRejected
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_names import REJECTED

from redraft_serving.canary.trial import Trial
from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import PREVIOUS
from redraft_serving.swap.arms import Arms
from redraft_serving.swap.decisions import Decisions
from redraft_serving.swap.served import BASE

_HALF_WAY_SECONDS = 10.0
"""A move of two aliases that is half done for this long will not be finished by whoever began it."""


class Watches:
    """One step per domain and pass. Raises RegistryError, StreamUnavailable."""

    def __init__(self, registry: Registry, arms: Arms, trials: Trials, decisions: Decisions) -> None:
        self._registry = registry
        self._arms = arms
        self._served = arms.served
        self._trials = trials
        self._decisions = decisions
        self._half_way: dict[str, float] = {}
        """Domain -> since when its champion is also the version before."""

    def step(self, domain: str, champion: VersionInfo | None) -> None:
        """Load, judge or end the watch of the domain's champion."""
        store = self._trials.store
        served_here = champion is not None and self._served.version(domain) == champion.version
        if champion is None or not served_here or store is None or not self._trials.settings.watch_share:
            self.stop(domain)
            return
        previous = self._registry.alias(domain, self._registry.aliases.previous)
        if previous is not None and previous.version == champion.version:
            self._finish(domain)
            return
        self._half_way.pop(domain, None)
        if not self._loaded(domain, previous):
            self.stop(domain)
            return
        trial = Trial(domain, "watch", champion.version, previous.version if previous else BASE)
        trial = replace(trial, window=store.window(domain, trial.name))
        self._trials.begin(trial)
        self._judge(champion, trial)

    def stop(self, domain: str) -> None:
        """All requests are the champion's."""
        if self._served.version(domain, PREVIOUS) is not None:
            self._trials.end(domain)
            self._arms.retire(domain, PREVIOUS)

    def _finish(self, domain: str) -> None:
        """A rollback died before its last step, which this repeats; there is no champion 0 to leave. A
        promotion that is under way looks the same for a moment, and needs nobody's help.
        """
        now = time.monotonic()
        if now - self._half_way.setdefault(domain, now) >= _HALF_WAY_SECONDS:
            self._registry.rollback(domain, leaving=0)

    def _judge(self, champion: VersionInfo, trial: Trial) -> None:
        verdict, sums = self._trials.judge(trial)
        if verdict.outcome == "rollback":
            self._decisions.carry_out(champion, trial, verdict, sums)
        elif sums[PREVIOUS].requests >= self._trials.settings.watch_window_requests:
            self._decisions.next_window(trial)

    def _loaded(self, domain: str, previous: VersionInfo | None) -> bool:
        """Whether the version before serves its arm here; one that can't is no standard of comparison."""
        version = previous.version if previous else BASE
        if self._served.version(domain, PREVIOUS) == version:
            return True
        self._trials.end(domain)
        if previous is None:
            self._arms.take_base(domain, PREVIOUS)
            return True
        if not previous.ready or previous.validation_status == REJECTED:
            return False
        if (domain, previous.version) in self._served.refused:
            return False
        try:
            self._arms.take(domain, PREVIOUS, previous)
        except AdapterRejected as error:
            self._served.refused[domain, previous.version] = error.reason
            self._served.complain(domain, f"version {version} before the champion: {error.reason}")
            return False
        return True
