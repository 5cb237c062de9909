"""Follows the champion of a domain: its own, that of the domain whose drafts it shares, or a first copy.

A version that fails its checks is tagged with the reason, once, and never tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from redraft_models.errors import AdapterRejected, RegistryError
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_names import REJECTED, STATUS

from redraft_serving.engine.interface import CHAMPION
from redraft_serving.swap.arms import Arms
from redraft_serving.swap.served import BASE, REFUSED, Seldom

logger = logging.getLogger(__name__)


class Champions:
    """One step per domain and pass.

    Args:
        adopt_from: the domain whose champion a domain without versions begins with; None: with the base.
        shared: domain -> the domain whose champion serves it.
    """

    def __init__(
        self, registry: Registry, arms: Arms, adopt_from: str | None, shared: Mapping[str, str]
    ) -> None:
        self._registry = registry
        self._arms = arms
        self._served = arms.served
        self._adopt_from = adopt_from
        self._shared = shared
        self._search = Seldom()

    def follow(self, domain: str) -> VersionInfo | None:
        """Serve the champion as the registry has it now, and return it. Raises RegistryError."""
        source = self._shared.get(domain, domain)
        info = self._registry.champion(source) or self._adopted(domain)
        present = self._served.version(domain) or BASE
        if info is None:
            if present != BASE:
                self._without_champion(domain, source, present)
            return None
        if not self._refused(info) and info.version != present and info.ready:
            self._change(domain, info, present)
        refused = (info.domain, info.version) in self._served.refused
        if (refused or info.validation_status == REJECTED) and self._served.version(domain) == BASE:
            self._fall_back(domain, source, info)
        return info

    def _fall_back(self, domain: str, source: str, champion: VersionInfo) -> None:
        """A worker that starts while the champion can't be served begins with the version before it: those
        that run serve on what they have, and the base draft would be the worst of all.
        """
        previous = self._registry.alias(source, self._registry.aliases.previous)
        if previous is None or previous.version == champion.version or self._refused(previous):
            return
        if previous.ready and previous.validation_status != REJECTED:
            self._change(domain, previous, BASE)

    def _adopted(self, domain: str) -> VersionInfo | None:
        """A domain of its own that has no version yet begins with a copy, once there is one to copy."""
        source = self._adopt_from
        if source is None or domain == source or domain in self._shared:
            return None
        if self._served.version(source) == BASE or self._served.version(domain) != BASE:
            return None
        if not self._search.due(domain):
            return None
        info = self._registry.adopt(domain, source)
        if info is not None:
            logger.info(
                "domain %s begins with %s's champion, as its version %d", domain, source, info.version
            )
        return info

    def _without_champion(self, domain: str, source: str, present: int | str) -> None:
        """No alias: by a rollback to the base draft, or by an accident that changes nothing here."""
        if self._registry.champion_is_base(source):
            self._arms.take_base(domain, CHAMPION)
        else:
            self._served.complain(domain, f"the champion alias is gone; version {present} goes on")

    def _refused(self, info: VersionInfo) -> bool:
        reason = self._served.refused.get((info.domain, info.version))
        # A promotion tags its version as approved after moving the alias, maybe after our refusal.
        if reason is not None and info.validation_status != REJECTED:
            self._tag(info, reason)
        return reason is not None

    def _change(self, domain: str, info: VersionInfo, present: int | str) -> None:
        if info.validation_status == REJECTED:
            self._served.complain(
                domain, f"champion {info.version} is tagged rejected; version {present} goes on"
            )
            return
        try:
            self._arms.take(domain, CHAMPION, info)
        except AdapterRejected as error:
            self._refuse(domain, info, error.reason)

    def _refuse(self, domain: str, info: VersionInfo, reason: str) -> None:
        """Keep the present draft, never try this version again, and say so where people look."""
        self._served.refused[info.domain, info.version] = reason
        self._served.count(domain, REFUSED)
        logger.warning("version %d of domain %s is refused: %s", info.version, info.domain, reason)
        self._tag(info, reason)

    def _tag(self, info: VersionInfo, reason: str) -> None:
        # The reason first: whoever sees the status finds it.
        tags = {"decision_reason": refusal(reason), STATUS: REJECTED}
        try:
            self._registry.set_tags(info.domain, info.version, tags)
        except RegistryError as error:
            logger.warning("version %d could not be tagged: %s", info.version, error)


def refusal(reason: str) -> str:
    """What the tags of a refused version say."""
    return f"A serving worker refused it: {reason}"
