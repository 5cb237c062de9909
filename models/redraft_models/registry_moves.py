"""Moving a domain's aliases: promote, roll back, settle.

Aliases move by single calls, so the order matters: `previous` first, then `champion`, so that a process that
dies in between leaves a champion that was one before and a way back. Readers compare version numbers, as
integers.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from redraft_models.errors import RegistryError
from redraft_models.registry_connection import already_exists
from redraft_models.registry_names import (
    APPROVED,
    CHAMPION_IS_BASE,
    PENDING,
    REJECTED,
    STATUS,
    model_name,
)
from redraft_models.registry_text import model_description, version_words
from redraft_models.registry_versions import VersionInfo, Versions

logger = logging.getLogger(__name__)

BASE = "base"
BASE_WORDS = "the base draft"
_ROLLBACK_TAGS = {"rollback_reason", "rolled_back_at"}


class Moves(Versions):
    """Writes to versions and aliases; each is safe to repeat after any failure."""

    def set_tags(self, domain: str, version: int, tags: Mapping[str, object]) -> None:
        """Set tags of a version; None removes nothing and is left out."""
        model = model_name(domain)
        for key, value in tag_values(tags).items():
            self._write(
                f"tag version {version} of {model}",
                partial(self._client.set_model_version_tag, model, str(version), key, value),
            )

    def settle(self, domain: str, version: int) -> VersionInfo:
        """Carry out what the tag `decision` of a pending version says, and return the version as it is then.

        Safe to repeat at any point, so a round that was killed after registering is finished by calling it. A
        version older than the champion is not promoted any more, nor one that was measured against another
        champion (its tag `parent_version`) than the present one.
        """
        info = self.version(domain, version)
        if info.validation_status != PENDING:
            return info
        champion = self.champion(domain)
        overtaken = _overtaken(info, str(champion.version) if champion else BASE)
        if info.tags.get("decision") != "promoted":
            self.reject(domain, version)
        elif overtaken is not None:
            self.reject(domain, version, overtaken)
        else:
            self.promote(domain, version)
        return self.version(domain, version)

    def reject(self, domain: str, version: int, reason: str | None = None) -> None:
        """Tag a version rejected, with a reason unless its own stands; it is no challenger any more."""
        tags = {"decision": "rejected", "decision_reason": reason, STATUS: REJECTED}
        self.set_tags(domain, version, tags)
        self._drop_alias(domain, self.aliases.challenger, version)

    def promote(self, domain: str, version: int) -> None:
        """Make a version the champion, remember the one before as `previous`, tag it approved."""
        info = self._require_ready(domain, version)
        before = self.champion(domain)
        if before is None or before.version != version:
            self.set_tags(domain, version, {"champion_before": before.version if before else BASE})
            self._point(domain, self.aliases.previous, before.version if before else None)
            self._point(domain, self.aliases.champion, version)
        self._tag_model(domain, CHAMPION_IS_BASE, "false")
        self._forget_rollback(info)
        self.set_tags(domain, version, {STATUS: APPROVED, "promoted_at": _now()})
        self._drop_alias(domain, self.aliases.challenger, version)
        self._describe(domain)

    def rollback(
        self, domain: str, to: int | None = None, reason: str = "rolled back by hand"
    ) -> tuple[int | None, int | None]:
        """Serve an earlier draft again; returns (version left, version now), None meaning the base draft.

        Without `to` it goes where `previous` points, and to the base draft if it points nowhere; 0 is the
        base draft itself. `previous` then moves on to what was champion before the version gone back to, so
        that repeating it walks back to the base and never returns to a draft that was left.
        """
        left = self.champion(domain)
        if to is None:
            earlier = self.alias(domain, self.aliases.previous)
            if earlier is None and left is None:
                raise RegistryError(
                    f"The domain {domain} serves its base draft; there is nothing to roll back."
                )
        else:
            earlier = self._require_ready(domain, to) if to else None
        target = earlier.version if earlier else None
        beyond = self._before(domain, earlier)
        if left is not None and left.version != target:
            self.set_tags(domain, left.version, {"rollback_reason": reason, "rolled_back_at": _now()})
        self._ensure_model(domain)
        self._tag_model(domain, CHAMPION_IS_BASE, "false" if target else "true")
        self._point(domain, self.aliases.champion, target)
        self._point(domain, self.aliases.previous, beyond)
        if earlier is not None:
            self._forget_rollback(earlier)
        self._describe(domain)
        return (left.version if left else None), target

    def _require_ready(self, domain: str, version: int) -> VersionInfo:
        info = self.version(domain, version)
        if not info.ready:
            raise RegistryError(
                f"Version {version} of {model_name(domain)} has the status {info.status}, not READY; try "
                "again later."
            )
        return info

    def _before(self, domain: str, info: VersionInfo | None) -> int | None:
        """What was champion before `info` became it, if that still exists."""
        before = info.tags.get("champion_before", BASE) if info else BASE
        if info is None or not before.isdigit() or int(before) >= info.version:
            return None
        exists = any(other.version == int(before) for other in self.versions(domain))
        return int(before) if exists else None

    def _forget_rollback(self, info: VersionInfo) -> None:
        """A version that serves again no longer says why it was left."""
        for key in _ROLLBACK_TAGS & info.tags.keys():
            self._write(
                "remove a tag",
                partial(
                    self._client.delete_model_version_tag, model_name(info.domain), str(info.version), key
                ),
            )

    def _ensure_model(self, domain: str) -> str:
        model = model_name(domain)
        found = self._read_or_none("read a model", lambda: self._client.get_registered_model(model))
        if found is None:
            self._write("create a registered model", lambda: self._create_model(domain))
        return model

    def _create_model(self, domain: str) -> None:
        nothing = version_words(None, {})
        try:
            self._client.create_registered_model(
                model_name(domain),
                tags={"redraft.domain": domain},
                description=model_description(domain, nothing, nothing),
            )
        except Exception as error:
            if not already_exists(error):  # another process was faster
                raise

    def _point(self, domain: str, alias: str, version: int | None) -> None:
        """Let an alias point at a version, or at nothing."""
        model = model_name(domain)
        if version is None:
            self._drop_alias(domain, alias)
        else:
            self._write(
                "set an alias", lambda: self._client.set_registered_model_alias(model, alias, str(version))
            )

    def _drop_alias(self, domain: str, alias: str, version: int | None = None) -> None:
        """Remove an alias, only if it points at `version` where one is given."""
        found = self.alias(domain, alias)
        if found is not None and version in (None, found.version):
            model = model_name(domain)
            self._write("remove an alias", lambda: self._client.delete_registered_model_alias(model, alias))

    def _tag_model(self, domain: str, key: str, value: str) -> None:
        model = model_name(domain)
        self._write(
            "tag a registered model", lambda: self._client.set_registered_model_tag(model, key, value)
        )

    def _describe(self, domain: str) -> None:
        """Bring the registered model's text up to date. Only people read it, so a failure is not passed
        on.
        """
        try:
            champion = self.champion(domain)
            previous = self.alias(domain, self.aliases.previous)
            text = model_description(
                domain,
                version_words(champion.version if champion else None, champion.tags if champion else {}),
                version_words(previous.version if previous else None, previous.tags if previous else {}),
            )
            model = model_name(domain)
            self._write("describe a model", lambda: self._client.update_registered_model(model, text))
        except RegistryError as error:
            logger.warning("The description of %s stays as it was: %s", model_name(domain), error)


def _overtaken(info: VersionInfo, champion: str) -> str | None:
    """Why a version that won its comparison says nothing about `champion`, a version number or "base"."""
    if champion == str(info.version):
        return None
    if champion != BASE and int(champion) > info.version:
        return f"Version {champion} became champion before this one was settled."
    measured = info.tags.get("parent_version", champion)
    if measured == champion:
        return None
    names = [BASE_WORDS if name == BASE else f"version {name}" for name in (measured, champion)]
    return f"It was measured against {names[0]}, but {names[1]} became champion before it was settled."


def tag_values(tags: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in tags.items() if value is not None}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
