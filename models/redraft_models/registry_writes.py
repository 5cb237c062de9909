"""Single writes to a domain's registered model: tags, aliases, the model itself. Each is safe to repeat."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from redraft_models.errors import RegistryError
from redraft_models.registry_connection import already_exists, is_absent
from redraft_models.registry_names import PRUNING, VERSION_ARTIFACT, model_name
from redraft_models.registry_summary import model_description
from redraft_models.registry_versions import VersionInfo, Versions

logger = logging.getLogger(__name__)


class Writes(Versions):
    """What moves are made of. Raises RegistryUnavailable when the server stays away."""

    def _tag(self, domain: str, version: int, tags: Mapping[str, object]) -> None:
        model = model_name(domain)
        for key, value in tag_values(tags).items():
            self._write(
                f"tag version {version} of {model}",
                partial(self._client.set_model_version_tag, model, str(version), key, value),
            )

    def _tag_if_there(self, domain: str, version: int, tags: Mapping[str, object]) -> None:
        """As `_tag`, for a version that somebody may have deleted meanwhile."""
        try:
            self._tag(domain, version, tags)
        except RegistryError as error:
            if not _means_absent(error):
                raise
            logger.warning("version %d of domain %s is gone: %s", version, domain, error)

    def _untag(self, info: VersionInfo, keys: Iterable[str]) -> None:
        model = model_name(info.domain)
        for key in keys:
            if key in info.tags:
                self._write(
                    "remove a tag",
                    partial(self._client.delete_model_version_tag, model, str(info.version), key),
                )

    def _require_ready(self, domain: str, version: int) -> VersionInfo:
        info = self.version(domain, version)
        if not info.ready:
            raise RegistryError(
                f"Version {version} of {model_name(domain)} has the status {info.status}, not READY; try "
                "again later."
            )
        if PRUNING in info.tags:
            raise RegistryError(
                f"Version {version} of {model_name(domain)} is being deleted; its files may be gone already."
            )
        return info

    def _ensure_model(self, domain: str) -> bool:
        """Make the registered model where it is missing; True for the one caller that made it."""
        model = model_name(domain)
        found = self._read_or_none("read a model", lambda: self._client.get_registered_model(model))
        return found is None and self._write("create a registered model", lambda: self._create_model(domain))

    def _create_model(self, domain: str) -> bool:
        try:
            self._client.create_registered_model(
                model_name(domain),
                tags={"redraft.domain": domain},
                description=model_description(domain, {}, []),
            )
        except Exception as error:
            if already_exists(error):  # another process was faster
                return False
            raise
        return True

    def _register_once(self, domain: str, run_id: str, tags: Mapping[str, str]) -> int:
        existing = self._version_of_run(domain, run_id)
        if existing is not None:
            self._tag(domain, existing.version, tags)
            return existing.version
        made = self._client.create_model_version(
            model_name(domain),
            source=f"runs:/{run_id}/{VERSION_ARTIFACT}",
            run_id=run_id,
            tags=dict(tags),
            await_creation_for=0,
        )
        return int(made.version)

    def _point(self, domain: str, alias: str, version: int | None) -> None:
        """Let an alias point at a version, or at nothing."""
        model = model_name(domain)
        if version is None:
            self._drop_alias(domain, alias)
        else:
            self._write(
                f"set the alias {alias} to version {version}",
                lambda: self._client.set_registered_model_alias(model, alias, str(version)),
            )

    def _point_if_there(self, domain: str, alias: str, version: int | None) -> None:
        """As `_point`, but at nothing where somebody has deleted the version meanwhile."""
        try:
            self._point(domain, alias, version)
        except RegistryError as error:
            if not _means_absent(error):
                raise
            logger.warning("the alias %s of domain %s points nowhere: %s", alias, domain, error)
            self._drop_alias(domain, alias)

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


def tag_values(tags: Mapping[str, object]) -> dict[str, str]:
    """Tags as MLflow takes them; None is left out."""
    return {key: str(value) for key, value in tags.items() if value is not None}


def _means_absent(error: RegistryError) -> bool:
    return isinstance(error.__cause__, Exception) and is_absent(error.__cause__)
