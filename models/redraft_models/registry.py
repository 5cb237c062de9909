"""The registry of drafts: MLflow's experiments, runs, versions and aliases in redraft's terms."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from redraft_models.registry_connection import is_absent
from redraft_models.registry_download import Downloads
from redraft_models.registry_moves import Moves, tag_values
from redraft_models.registry_names import PENDING, STATUS, VERSION_ARTIFACT, Aliases, model_name
from redraft_models.registry_runs import Runs
from redraft_models.registry_text import version_description
from redraft_models.registry_versions import VersionInfo

__all__ = ["Aliases", "Registry", "VersionInfo"]


class Registry(Downloads, Moves, Runs):
    """Experiments, runs, versions and aliases of every domain, in MLflow at `tracking_uri`.

    Made once per process and shared between its threads. Raises RegistryError for a URI that is neither
    sqlite nor http(s), and for alias names that MLflow refuses. Every method raises RegistryUnavailable when
    the server does not answer, RegistryError when it refuses.
    """

    def __init__(
        self,
        tracking_uri: str,
        *,
        timeout_seconds: float = 5.0,
        artifact_root: Path | None = None,
        transfer_seconds: int = 60,
        aliases: Aliases | None = None,
    ) -> None:
        self.aliases = aliases or Aliases()
        super().__init__(
            tracking_uri,
            timeout_seconds=timeout_seconds,
            artifact_root=artifact_root,
            transfer_seconds=transfer_seconds,
        )

    def register(self, domain: str, run_id: str, tags: Mapping[str, object], description: str = "") -> int:
        """Make a version from the files under `version/` among a run's artifacts; returns its number.

        A run yields at most one version: called again for the same run, it returns the version that is there,
        with the tags given now. A version tagged pending gets the alias `challenger`.
        """
        model = self._ensure_model(domain)
        values = tag_values(tags)
        number = self._write(
            "register a version", lambda: self._register_once(domain, run_id, values, description)
        )
        if values.get(STATUS) == PENDING:
            challenger = self.aliases.challenger
            self._write(
                "set an alias",
                lambda: self._client.set_registered_model_alias(model, challenger, str(number)),
            )
        return number

    def prune(self, domain: str, keep: int) -> list[int]:
        """Delete old versions until `keep` are left, and return their numbers.

        Versions with an alias, pending ones, the newest and the one whose tags are the cursor always stay.
        """
        aliased = {
            found.version
            for name in (self.aliases.champion, self.aliases.challenger, self.aliases.previous)
            if (found := self.alias(domain, name)) is not None
        }
        numbers = [info.version for info in self.versions(domain)]
        kept = aliased | set(numbers[:1]) | {info.version for info in self.pending(domain)}
        kept |= {info.version for info in (self.cursor(domain),) if info is not None}
        kept |= set([number for number in numbers if number not in kept][: max(0, keep - len(kept))])
        doomed = [number for number in numbers if number not in kept]
        for number in doomed:
            self._write("delete a version", partial(self._delete_version, domain, number))
        return doomed

    def _register_once(self, domain: str, run_id: str, tags: dict[str, str], description: str) -> int:
        existing = self._version_of_run(domain, run_id)
        if existing is not None:
            self.set_tags(domain, existing.version, tags)
            return existing.version
        made = self._client.create_model_version(
            model_name(domain),
            source=f"runs:/{run_id}/{VERSION_ARTIFACT}",
            run_id=run_id,
            tags=tags,
            description=version_description(tags, description),
            await_creation_for=0,
        )
        return int(made.version)

    def _delete_version(self, domain: str, version: int) -> None:
        try:
            self._client.delete_model_version(model_name(domain), str(version))
        except Exception as error:
            if not is_absent(error):
                raise
