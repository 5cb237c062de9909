"""The canary: an approved candidate serves a share of its domain's requests until the numbers decide."""

from __future__ import annotations

import logging

from redraft_models.errors import AdapterRejected, RegistryError
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_names import CANARY_STARTED

from redraft_serving.canary.trial import Trial
from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import CHALLENGER, PREVIOUS
from redraft_serving.swap.arms import Arms
from redraft_serving.swap.champions import refusal
from redraft_serving.swap.decisions import Decisions
from redraft_serving.swap.served import BASE, FAILED, REFUSED, Seldom

logger = logging.getLogger(__name__)


class Canaries:
    """One step per domain and pass. Raises RegistryError, StreamUnavailable."""

    def __init__(self, registry: Registry, arms: Arms, trials: Trials, decisions: Decisions) -> None:
        self._registry = registry
        self._arms = arms
        self._served = arms.served
        self._trials = trials
        self._decisions = decisions
        self._search = Seldom()

    def step(self, domain: str, champion: VersionInfo | None) -> bool:
        """Load, judge or end the domain's canary; True while one runs or has just been decided."""
        info = self._find(domain)
        if info is None or not info.ready:
            self._stop(domain)
            return False
        settled = champion is not None and champion.version == info.version
        if settled or self._trials.settings.share == 0:
            self._decisions.promote(info)
            return True
        if self._trials.store is None:
            self._served.complain(domain, f"version {info.version} waits for a canary, which needs Redis")
            return True
        if (domain, info.version) in self._served.refused:
            self._decisions.reject(info, refusal(self._served.refused[domain, info.version]))
            return True
        self._run(info, self._served.version(domain) or BASE)
        return True

    def _find(self, domain: str) -> VersionInfo | None:
        """The version whose canary runs; its tags say so, its alias only finds it quickly."""
        info = self._registry.alias(domain, self._registry.aliases.challenger)
        if info is not None and info.canary_running:
            return info
        if self._served.version(domain, CHALLENGER) is not None or self._search.due(domain):
            return self._registry.running_canary(domain)
        return None

    def _run(self, info: VersionInfo, champion: int | str) -> None:
        started = info.tags.get(CANARY_STARTED, "")
        trial = Trial(
            info.domain,
            "canary",
            champion,
            info.version,
            started_ms=int(started) if started.isdigit() else info.created_ms,
        )
        # Loaded or not, this worker can decide on what the others have measured, and end one that is overdue.
        if self._loaded(info):
            self._trials.begin(trial)
        if (info.domain, info.version) in self._served.refused:
            return
        verdict, sums = self._trials.judge(trial)
        if verdict.outcome != "continue":
            self._decisions.carry_out(info, trial, verdict, sums)

    def _loaded(self, info: VersionInfo) -> bool:
        """Whether the challenger serves its arm here; a rotten one is rejected for all."""
        domain = info.domain
        if self._served.version(domain, CHALLENGER) == info.version:
            return True
        self._trials.end(domain)
        self._arms.retire(domain, PREVIOUS)
        try:
            self._arms.take(domain, CHALLENGER, info)
            return True
        except AdapterRejected as error:
            self._served.refused[domain, info.version] = error.reason
            self._served.count(domain, REFUSED)
            logger.warning("challenger %d of domain %s is refused: %s", info.version, domain, error.reason)
            self._decisions.reject(info, refusal(error.reason))
        except RegistryError:
            raise
        except Exception as error:
            self._served.count(domain, FAILED)
            self._served.complain(domain, f"challenger {info.version} can't be loaded: {error}")
        return False

    def _stop(self, domain: str) -> None:
        if self._served.version(domain, CHALLENGER) is not None:
            self._trials.end(domain)
            self._arms.retire(domain, CHALLENGER)
