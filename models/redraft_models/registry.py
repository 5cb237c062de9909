"""The registry of drafts: MLflow's experiments, runs, versions and aliases in redraft's terms."""

from collections.abc import Mapping
from pathlib import Path

from redraft_models.registry_adopt import Adoption
from redraft_models.registry_names import PENDING, STATUS, Aliases
from redraft_models.registry_prune import Pruned
from redraft_models.registry_versions import VersionInfo
from redraft_models.registry_writes import tag_values

__all__ = ["Aliases", "Pruned", "Registry", "VersionInfo"]


class Registry(Adoption):
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

    def register(self, domain: str, run_id: str, tags: Mapping[str, object]) -> int:
        """Make a version from the files under `version/` among a run's artifacts; returns its number.

        A run yields at most one version: called again for the same run, it returns the version that is there,
        with the tags given now. A version tagged pending gets the alias `challenger`.
        """
        self._ensure_model(domain)
        values = tag_values(tags)
        number = self._write("register a version", lambda: self._register_once(domain, run_id, values))
        if values.get(STATUS) == PENDING:
            self._point(domain, self.aliases.challenger, number)
        self._describe(domain, number)
        return number
