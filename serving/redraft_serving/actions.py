"""What an operator may ask of a domain's drafts over HTTP: promote a version, go back, train now.

ActionError
├── UnknownVersion      the domain has no such version
├── ActionConflict      it makes no sense as things are
└── ActionUnavailable   the registry or Redis doesn't answer, or isn't there

Messages are for clients: they name no address and no file. What the registry said goes to the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from redraft_models.errors import RegistryError, RegistryUnavailable
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_names import CANARY, PENDING, REJECTED, UNDECIDED
from redraft_queue.errors import StreamUnavailable

logger = logging.getLogger(__name__)

Announce = Callable[[str, int | None], object]
"""announce(domain, version): tell the workers that a champion has moved; None is the base draft."""
RequestRound = Callable[[str], str]
"""request_round(domain) -> the round's id."""


class ActionError(Exception):
    """Root of what an action raises."""


class UnknownVersion(ActionError):
    """The domain has no such version."""


class ActionConflict(ActionError):
    """It makes no sense as things are."""


class ActionUnavailable(ActionError):
    """The registry or Redis doesn't answer, or isn't there."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A champion that moved, from version to version; None is the base draft."""

    domain: str
    left: int | None
    now: int | None


class Actions:
    """Blocking, with the registry's and the broker's limits on waiting: call it off the event loop.

    Moves are made one at a time, so that callers who wait for a slow registry take one thread between them.
    `announce` only saves the other workers a poll: its failure is logged.
    """

    def __init__(
        self,
        registry: Registry | None,
        announce: Announce | None = None,
        request_round: RequestRound | None = None,
    ) -> None:
        self._registry = registry
        self._announce = announce
        self._request_round = request_round
        self._moving = threading.Lock()

    def promote(self, domain: str, version: int) -> Moved:
        """Make a version the champion, whatever its gate or its trial says. Raises ActionError.

        For the present champion it ends the trial of the version that is to follow it.
        """
        with self._move() as registry:
            info = _usable(registry, domain, version)
            champion = registry.champion(domain)
            left = None if champion is None else champion.version
            if left == version:
                return self._stays(registry, domain, version)
            if info.validation_status == PENDING:
                raise ActionConflict(
                    f"Version {version} of {domain} is still measured by its training round."
                )
            after = registry.promote(domain, version)
            if after.validation_status == REJECTED:
                reason = after.tags.get("decision_reason", "it was overtaken")
                raise ActionConflict(f"Version {version} of {domain} was not promoted: {reason}")
            return self._moved(domain, left, version)

    def _stays(self, registry: Registry, domain: str, champion: int) -> Moved:
        tried = registry.running_canary(domain)
        if tried is None or tried.version == champion:
            raise ActionConflict(f"Version {champion} is the champion of {domain} already.")
        reason = f"An operator kept version {champion} before this one's trial had ended."
        registry.reject(domain, tried.version, reason, {CANARY: UNDECIDED})
        now = registry.champion(domain)
        if now is not None and now.version == tried.version:
            # A worker has promoted it at the same moment: the operator's word stands above that.
            registry.promote(domain, champion)
        return self._moved(domain, champion, champion)

    def rollback(self, domain: str, to: int | None = None, reason: str = "rolled back by hand") -> Moved:
        """Serve an earlier draft again: `to`, 0 for the base draft, None for the one before. Raises
        ActionError.
        """
        with self._move() as registry:
            champion = registry.champion(domain)
            present = 0 if champion is None else champion.version
            if to:
                _usable(registry, domain, to)
            nowhere = (
                to is None and champion is None and registry.alias(domain, registry.aliases.previous) is None
            )
            if to == present or nowhere:
                serving = f"version {present}" if present else "its base draft"
                raise ActionConflict(f"The domain {domain} serves {serving} already; nothing to go back to.")
            left, now = registry.rollback(domain, to, reason)
            return self._moved(domain, left, now)

    def train(self, domain: str) -> str:
        """Ask for a training round now; answers its id. Raises ActionUnavailable."""
        if self._request_round is None:
            raise ActionUnavailable(
                "This worker runs without Redis, so nobody would take up a training round."
            )
        try:
            return self._request_round(domain)
        except StreamUnavailable as error:
            logger.warning("a training round of domain %s could not be asked for: %s", domain, error)
            raise ActionUnavailable(
                "Redis doesn't answer, so no training round could be asked for; try again later."
            ) from error

    @contextmanager
    def _move(self) -> Iterator[Registry]:
        """The registry, for one caller at a time, its errors turned into ours."""
        if self._registry is None:
            raise ActionUnavailable(
                "This worker runs without a registry, so there are no versions to choose."
            )
        if not self._moving.acquire(blocking=False):
            raise ActionConflict("Another version is being moved just now; look what came of it first.")
        try:
            yield self._registry
        except RegistryUnavailable as error:
            logger.warning("the registry can't be asked: %s", error)
            raise ActionUnavailable("The registry doesn't answer; try again later.") from error
        except RegistryError as error:
            logger.warning("the registry refused: %s", error)
            raise ActionUnavailable("The registry refused; the worker's log says why.") from error
        finally:
            self._moving.release()

    def _moved(self, domain: str, left: int | None, now: int | None) -> Moved:
        try:
            if self._announce is not None:
                self._announce(domain, now)
        except Exception as error:
            logger.warning("the move could not be announced, workers will find it by polling: %s", error)
        return Moved(domain, left, now)


def _usable(registry: Registry, domain: str, version: int) -> VersionInfo:
    info = registry.version_or_none(domain, version)
    if info is None:
        raise UnknownVersion(f"The domain {domain} has no version {version}.")
    if not info.ready:
        raise ActionConflict(f"Version {version} of {domain} is not ready: MLflow says {info.status}.")
    return info
