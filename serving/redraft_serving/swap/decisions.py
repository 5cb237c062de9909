"""Carrying out a trial's verdict through the registry: by one worker at a time, and safe to repeat.

The registry's moves look at its state again themselves, so a worker that died in between, or one that
decided on the same evidence a moment later, changes nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_names import APPROVED, CANARY, FAILED, UNDECIDED
from redraft_queue.errors import QueueError
from redraft_queue.events import ChampionMoved
from redraft_queue.trials import TrialStore

from redraft_serving.canary.cards import trial_tags
from redraft_serving.canary.trial import Trial
from redraft_serving.canary.trials import Evidence
from redraft_serving.canary.verdict import Verdict

logger = logging.getLogger(__name__)

Announce = Callable[[ChampionMoved], object]


class Decisions:
    """Promotes, rejects and rolls back. Raises RegistryError, StreamUnavailable."""

    def __init__(self, registry: Registry, store: TrialStore | None, announce: Announce) -> None:
        self._registry = registry
        self._store = store
        self._announce = announce

    def promote(self, info: VersionInfo, numbers: Mapping[str, object] | None = None) -> None:
        """Make a candidate whose canary runs the champion; nothing if it runs no more."""
        after = self._registry.promote(info.domain, info.version, numbers, canary=True)
        if after.validation_status == APPROVED:
            logger.info("version %d of domain %s is promoted", info.version, info.domain)
            self.tell(info.domain, info.version)

    def reject(
        self,
        info: VersionInfo,
        reason: str,
        numbers: Mapping[str, object] | None = None,
        ended: str = FAILED,
    ) -> None:
        """End a candidate's canary; nothing if it runs no more."""
        if self._registry.version(info.domain, info.version).canary_running:
            logger.info("version %d of domain %s stays out: %s", info.version, info.domain, reason)
            if self._store is not None:
                self._store.lost(info.domain, info.version)
            self._registry.reject(info.domain, info.version, reason, {**(numbers or {}), CANARY: ended})

    def carry_out(self, info: VersionInfo, trial: Trial, verdict: Verdict, sums: Evidence) -> bool:
        """What the verdict says of the canary or of the watched champion `info`; False: another one does."""
        if self._store is None:
            return False
        numbers = trial_tags(trial, sums, verdict)
        with self._store.deciding(trial.domain) as mine:
            if not mine:
                return False
            if verdict.outcome == "promote":
                self.promote(info, numbers)
            elif verdict.outcome == "rollback":
                self._roll_back(info, verdict.sentence, numbers)
            else:
                ended = UNDECIDED if verdict.outcome == "undecided" else FAILED
                self.reject(info, verdict.sentence, numbers, ended)
            self._store.drop(trial.domain, trial.id)
        return True

    def next_window(self, trial: Trial) -> None:
        """Begin a watch's next window, unless another worker has done so."""
        if self._store is None:
            return
        with self._store.deciding(trial.domain) as mine:
            if mine and self._store.window(trial.domain, trial.name) == trial.window:
                self._store.open_window(trial.domain, trial.name, trial.window + 1)
                self._store.drop(trial.domain, trial.id)

    def tell(self, domain: str, version: int | None) -> None:
        """Wake the other workers; whoever misses it finds out at its next pass."""
        try:
            self._announce(ChampionMoved(domain, version))
        except QueueError as error:
            logger.warning("the new champion of domain %s was not announced: %s", domain, error)

    def _roll_back(self, champion: VersionInfo, reason: str, numbers: Mapping[str, object]) -> None:
        left, target = self._registry.rollback(
            champion.domain, reason=reason, leaving=champion.version, tags=numbers
        )
        if left == champion.version:
            words = "the base draft" if target is None else f"version {target}"
            logger.warning(
                "domain %s goes back from version %d to %s: %s", champion.domain, left, words, reason
            )
            self.tell(champion.domain, target)
