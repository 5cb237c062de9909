"""Moving a domain's aliases: settle, begin and end a canary, promote, reject, roll back.

Aliases move by single calls, so the order matters: `previous` first, then `champion`, so that a process that
dies in between leaves a champion that was one before and a way back. Readers compare version numbers, as
integers.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from redraft_models.errors import RegistryError
from redraft_models.registry_canary import BASE, Canaries, overtaken_by, parted, passed
from redraft_models.registry_names import (
    ADOPTED_FROM,
    APPROVED,
    CANARY,
    CHAMPION_IS_BASE,
    OVERTAKEN,
    PENDING,
    PRUNING,
    STATUS,
)
from redraft_models.registry_versions import VersionInfo

logger = logging.getLogger(__name__)

_ROLLBACK_TAGS = ("rollback_reason", "rolled_back_at")


class Moves(Canaries):
    """What becomes of a version; each move is safe to repeat after any failure."""

    def settle(self, domain: str, version: int, canary: bool = False) -> VersionInfo:
        """Carry out what the tag `decision` of a pending version says, and return the version as it is then.

        With `canary`, an approved candidate is not promoted: it is tagged `canary=running` and keeps the
        alias `challenger`, and whoever compares it with the champion on live traffic calls `promote` or
        `reject`.

        Safe to repeat at any point, so a round that was killed after registering is finished by calling it. A
        version older than the champion is not promoted any more, nor one that was measured against another
        champion (its tag `parent_version`) than the present one; this ends a running canary as well.
        """
        info = self.version(domain, version)
        if info.canary_running:
            self._end_unfit_canaries(domain)
        if info.validation_status != PENDING:
            return self.version(domain, version) if info.canary_running else info
        champion = self.champion(domain)
        begun = champion is not None and champion.version == version
        overtaken = overtaken_by(info, champion)
        if info.tags.get("decision") != "promoted":
            self.reject(domain, version)
        elif overtaken is not None:
            self.reject(domain, version, overtaken)
        elif canary and not begun and ADOPTED_FROM not in info.tags:
            self._begin_canary(info)
        else:
            self.promote(domain, version)
        return self.version(domain, version)

    def reject(
        self,
        domain: str,
        version: int,
        reason: str | None = None,
        tags: Mapping[str, object] | None = None,
    ) -> None:
        """Tag a version rejected, with a reason unless its own stands; it is no challenger any more.

        `tags` are the numbers that led to it; a running canary ends as `canary=failed` unless they say
        otherwise (undecided).
        """
        self._reject(self.version(domain, version), reason, tags or {})
        self._describe(domain, version)

    def promote(
        self,
        domain: str,
        version: int,
        tags: Mapping[str, object] | None = None,
        *,
        canary: bool = False,
    ) -> VersionInfo:
        """Make a version the champion, remember the one before as `previous`, tag it approved.

        Returns the version as it is then. A running canary ends as `canary=passed`; if it was overtaken
        meanwhile it is rejected instead, so look at `validation_status`. With `canary`, only a version whose
        canary still runs is promoted, so that a late decision undoes nothing.
        """
        info = self._require_ready(domain, version)
        before = self.champion(domain)
        if canary and not info.canary_running:
            return info
        if info.canary_running and (overtaken := overtaken_by(info, before)) is not None:
            self.reject(domain, version, overtaken, {**(tags or {}), CANARY: OVERTAKEN})
            return self.version(domain, version)
        ended, numbers = parted(tags or {}, passed(info))
        self._tag(domain, version, numbers)
        if before is None or before.version != version:
            self._tag(domain, version, {"champion_before": before.version if before else BASE})
            self._point_if_there(domain, self.aliases.previous, before.version if before else None)
            self._point(domain, self.aliases.champion, version)
        self._tag_model(domain, CHAMPION_IS_BASE, "false")
        self._untag(info, _ROLLBACK_TAGS)
        self._tag(domain, version, {STATUS: APPROVED, "promoted_at": _now(), CANARY: ended})
        self._drop_alias(domain, self.aliases.challenger, version)
        self._end_unfit_canaries(domain)
        self._describe(domain, version, before.version if before else None)
        return self.version(domain, version)

    def rollback(
        self,
        domain: str,
        to: int | None = None,
        reason: str = "rolled back by hand",
        *,
        leaving: int | None = None,
        tags: Mapping[str, object] | None = None,
    ) -> tuple[int | None, int | None]:
        """Serve an earlier draft again; returns (version left, version now), None meaning the base draft.

        Without `to` it goes where `previous` points, and to the base draft if it points nowhere; 0 is the
        base draft itself. `previous` then moves on to what was champion before the version gone back to, so
        that repeating it walks back to the base and never returns to a draft that was left.

        With `leaving` it happens only while that version is the champion, so that several who decide the same
        roll back once. `tags` are numbers for the version left. A running canary that was measured against
        the version left is rejected.
        """
        left = self.champion(domain)
        if leaving is not None and (left is None or left.version != leaving):
            self._finish_rollback(domain, left)
            return (left.version if left else None), (left.version if left else None)
        earlier = self._way_back(domain, left, to)
        target = earlier.version if earlier else None
        beyond = self._before(domain, earlier)
        if left is not None and left.version != target:
            why = {**(tags or {}), "rollback_reason": reason, "rolled_back_at": _now()}
            self._tag_if_there(domain, left.version, why)
        self._ensure_model(domain)
        self._tag_model(domain, CHAMPION_IS_BASE, "false" if target else "true")
        self._point(domain, self.aliases.champion, target)
        self._point_if_there(domain, self.aliases.previous, beyond)
        if earlier is not None:
            self._untag(earlier, _ROLLBACK_TAGS)
        self._end_unfit_canaries(domain)
        self._describe(domain, left.version if left else None, target)
        return (left.version if left else None), target

    def _way_back(self, domain: str, left: VersionInfo | None, to: int | None) -> VersionInfo | None:
        """Where a rollback leads; the tags know it where the alias `previous` has vanished."""
        if to is not None:
            return self._require_ready(domain, to) if to else None
        earlier = self.alias(domain, self.aliases.previous)
        if earlier is None and left is None:
            raise RegistryError(f"The domain {domain} serves its base draft; there is nothing to roll back.")
        before = self._before(domain, left) if earlier is None else None
        return self.version_or_none(domain, before) if before is not None else earlier

    def _finish_rollback(self, domain: str, champion: VersionInfo | None) -> None:
        """What a rollback that died after moving `champion` had still to do."""
        previous = self.alias(domain, self.aliases.previous)
        if champion is not None and previous is not None and previous.version == champion.version:
            self._point_if_there(domain, self.aliases.previous, self._before(domain, champion))
        self._end_unfit_canaries(domain)

    def _before(self, domain: str, info: VersionInfo | None) -> int | None:
        """What was champion before `info` became it, if that still exists."""
        before = info.tags.get("champion_before", BASE) if info else BASE
        if info is None or not before.isdigit() or int(before) >= info.version:
            return None
        found = self.version_or_none(domain, int(before))
        return int(before) if found is not None and PRUNING not in found.tags else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
