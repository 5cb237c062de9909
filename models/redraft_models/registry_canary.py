"""Canaries: approved candidates that serve a share of the traffic, until the live numbers decide.

The state is two tags of the version, `validation_status=approved` and `canary=running`; the alias
`challenger` only shows it.
"""

import logging
import time
from collections.abc import Mapping

from redraft_models.registry_names import (
    APPROVED,
    CANARY,
    CANARY_STARTED,
    FAILED,
    GATE_REASON,
    OVERTAKEN,
    PASSED,
    REJECTED,
    RUNNING,
    SKIPPED,
    STATUS,
)
from redraft_models.registry_notes import Notes
from redraft_models.registry_versions import VersionInfo

logger = logging.getLogger(__name__)

BASE = "base"
BASE_WORDS = "the base draft"
REASON = "decision_reason"


class Canaries(Notes):
    """Beginning and ending canaries; each step is safe to repeat after any failure."""

    def _begin_canary(self, info: VersionInfo) -> None:
        """The status goes last: until then the version is pending, and settling it again begins anew."""
        domain, version = info.domain, info.version
        for other in self._running(domain):
            if other.version != version:
                reason = f"Version {version} began its canary before this one's had ended."
                self._reject(other, reason, {CANARY: OVERTAKEN})
                self._describe(domain, other.version)
        self._point(domain, self.aliases.challenger, version)
        started = info.tags.get(CANARY_STARTED, str(int(time.time() * 1000)))
        self._tag(domain, version, {CANARY_STARTED: started, CANARY: RUNNING, STATUS: APPROVED})
        self._describe(domain, version)

    def _end_unfit_canaries(self, domain: str) -> None:
        """Reject every running canary that was measured against another champion than the present one."""
        running = self._running(domain)
        champion = self.champion(domain) if running else None
        for info in running:
            if (overtaken := overtaken_by(info, champion)) is not None:
                logger.info("canary %d of domain %s ends: %s", info.version, domain, overtaken)
                self._reject(info, overtaken, {CANARY: OVERTAKEN})
                self._describe(domain, info.version)

    def _reject(self, info: VersionInfo, reason: str | None, tags: Mapping[str, object]) -> None:
        """Numbers and reason first, so whoever sees the status finds them."""
        ended, numbers = parted(tags, FAILED if info.tags.get(CANARY) == RUNNING else None)
        if reason is not None and info.tags.get("decision") == "promoted":
            numbers[GATE_REASON] = info.tags.get(GATE_REASON, info.tags.get(REASON))
        numbers |= {REASON: reason, "decision": "rejected", STATUS: REJECTED, CANARY: ended}
        self._tag(info.domain, info.version, numbers)
        self._drop_alias(info.domain, self.aliases.challenger, info.version)


def overtaken_by(info: VersionInfo, present: VersionInfo | None) -> str | None:
    """Why a version that won its comparison says nothing about the present champion; None if it does."""
    champion = str(present.version) if present else BASE
    if champion == str(info.version):
        return None
    if champion != BASE and int(champion) > info.version:
        return f"Version {champion} became champion before this one was settled."
    measured = info.tags.get("parent_version", champion)
    if measured == champion:
        return None
    names = [BASE_WORDS if name == BASE else f"version {name}" for name in (measured, champion)]
    return f"It was measured against {names[0]}, but {names[1]} became champion before it was settled."


def passed(info: VersionInfo) -> str | None:
    """How a promotion ends the canary of a version: one that is not approved yet had only begun to begin."""
    if info.tags.get(CANARY) != RUNNING:
        return None
    return PASSED if info.canary_running else SKIPPED


def parted(tags: Mapping[str, object], ended: str | None) -> tuple[object, dict[str, object]]:
    """How the canary ended, which is written last, and all other tags."""
    rest = dict(tags)
    return rest.pop(CANARY, ended), rest
