"""Reading the versions of a domain's registered model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from redraft_models.registry_connection import Connection
from redraft_models.registry_names import (
    APPROVED,
    CANARY,
    CHAMPION_IS_BASE,
    PENDING,
    RUNNING,
    STATUS,
    Aliases,
    checked_identifier,
    domain_of,
    model_name,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_PAGE = 100


@dataclass(frozen=True)
class VersionInfo:
    """One version as MLflow has it. `version` is an integer here, whatever the store returns.

    `status` is MLflow's own; anything but READY must not be used. `created_ms` is milliseconds since 1970,
    UTC.
    """

    domain: str
    version: int
    run_id: str
    status: str
    created_ms: int
    source: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether MLflow has finished registering it. Says nothing about the files."""
        return self.status == "READY"

    @property
    def validation_status(self) -> str | None:
        """pending, approved or rejected; None if nobody tagged it."""
        return self.tags.get(STATUS)

    @property
    def canary_running(self) -> bool:
        """Whether it is an approved candidate that serves a share of the traffic."""
        return self.tags.get(CANARY) == RUNNING and self.validation_status == APPROVED


class Versions(Connection):
    """Reads: every method ends within the connection's limit and raises RegistryUnavailable if it cannot.

    Each asks for one page, however many versions there are; only `versions` without `most`, and `domains`,
    go on to the end.
    """

    aliases: Aliases = Aliases()

    def champion(self, domain: str) -> VersionInfo | None:
        """The version that the domain should serve, or None if the alias or the model is missing."""
        return self.alias(domain, self.aliases.champion)

    def champion_is_base(self, domain: str) -> bool:
        """Whether the domain was deliberately rolled back to the base draft.

        False both for a domain that has a champion and for one whose alias merely vanished.
        """
        model = self._read_or_none(
            "read a registered model", lambda: self._client.get_registered_model(model_name(domain))
        )
        if model is None or self.aliases.champion in model.aliases:
            return False
        return bool(model.tags.get(CHAMPION_IS_BASE) == "true")

    def alias(self, domain: str, name: str) -> VersionInfo | None:
        """The version an alias points at, or None."""
        model = model_name(domain)

        def call() -> VersionInfo:
            return version_info(domain, self._client.get_model_version_by_alias(model, name))

        return self._read_or_none("read an alias", call)

    def version(self, domain: str, number: int) -> VersionInfo:
        """One version; raises RegistryError if there is none of that number."""
        model = model_name(domain)

        return self._read(f"find version {number} of {model}", partial(self._get_version, domain, number))

    def version_or_none(self, domain: str, number: int) -> VersionInfo | None:
        """One version, or None where it was deleted or never existed."""
        return self._read_or_none("find a version", partial(self._get_version, domain, number))

    def versions(self, domain: str, most: int | None = None) -> list[VersionInfo]:
        """All versions, or the `most` newest: highest number first. Each page is one read with its own
        limit.
        """
        return self._search(domain, most=most)

    def newest(self, domain: str) -> VersionInfo | None:
        """The version with the highest number, whatever its status."""
        return next(iter(self._search(domain, most=1)), None)

    def cursor(self, domain: str) -> VersionInfo | None:
        """The newest version that a training round made: its tags tell how far the stream was trained on.

        A version that somebody registered by hand names no range, and must not send the cursor back.
        """
        return next(iter(self._search(domain, "tag.stream_last_id LIKE '%-%'", most=1)), None)

    def pending(self, domain: str) -> list[VersionInfo]:
        """Versions whose round died between registering and settling, oldest first."""
        return self._search(domain, f"tag.{STATUS} = '{PENDING}'")[::-1]

    def running_canary(self, domain: str) -> VersionInfo | None:
        """The approved candidate that serves a share of the traffic, the newest if there are several.

        Found by its tags, so it survives the loss of the alias `challenger`. If it is the champion already, a
        promotion died half-way: promote it again.
        """
        return next(iter(self._running(domain)), None)

    def domains(self) -> list[str]:
        """Domains that have a registered model, by name."""
        found: list[str] = []
        token: str | None = None
        while True:
            names, token = self._read("list registered models", partial(self._models_page, token))
            found += [domain for name in names if (domain := domain_of(name)) is not None]
            if not token:
                return sorted(found)

    def version_of_round(self, domain: str, round_id: str) -> VersionInfo | None:
        """The version that a training round registered, if it got that far."""
        return next(
            iter(self._search(domain, f"tag.round_id = '{checked_identifier(round_id)}'", most=1)), None
        )

    def _running(self, domain: str) -> list[VersionInfo]:
        # One condition alone: MLflow joins a table of all tags for each further one.
        running = self._search(domain, f"tag.{CANARY} = '{RUNNING}'")
        return [info for info in running if info.canary_running]

    def _get_version(self, domain: str, number: int) -> VersionInfo:
        return version_info(domain, self._client.get_model_version(model_name(domain), str(number)))

    def _version_of_run(self, domain: str, run_id: str) -> VersionInfo | None:
        return next(iter(self._search(domain, f"run_id = '{checked_identifier(run_id)}'", most=1)), None)

    def _search(
        self, domain: str, condition: str | None = None, most: int | None = None
    ) -> list[VersionInfo]:
        criteria = " AND ".join(filter(None, (f"name = '{model_name(domain)}'", condition)))
        found: list[VersionInfo] = []
        token: str | None = None
        while True:
            page, token = self._read("list versions", partial(self._page, domain, criteria, token, most))
            found += page
            if not token or (most is not None and len(found) >= most):
                return sorted(found, key=lambda info: -info.version)[:most]

    def _models_page(self, token: str | None) -> tuple[list[str], str | None]:
        page = self._client.search_registered_models(
            "name LIKE 'redraft-%'", max_results=_PAGE, page_token=token
        )
        return [str(model.name) for model in page], page.token

    def _page(
        self, domain: str, criteria: str, token: str | None, most: int | None
    ) -> tuple[list[VersionInfo], str | None]:
        page = self._client.search_model_versions(
            criteria, max_results=most or _PAGE, order_by=["version_number DESC"], page_token=token
        )
        return [version_info(domain, version) for version in page], page.token


def version_info(domain: str, version: "ModelVersion") -> VersionInfo:
    """MLflow's entity in our terms."""
    return VersionInfo(
        domain=domain,
        version=int(version.version),
        run_id=version.run_id or "",
        status=str(version.status),
        created_ms=int(version.creation_timestamp or 0),
        source=version.source or "",
        tags={str(key): str(value) for key, value in (version.tags or {}).items()},
    )
