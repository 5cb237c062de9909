"""The registry's part of a glance: by the quickest way that answers."""

from __future__ import annotations

import http.client
import logging
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from redraft_ops.glance.database import read_database
from redraft_ops.glance.server import AT_ONCE, Refused, read_server
from redraft_ops.glance.versions import DomainVersions, Version, chosen
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from redraft_models.registry import Registry, VersionInfo

logger = logging.getLogger(__name__)

SECONDS = 5.0
_SQLITE = "sqlite:///"


def versions_of(stack: Stack, domains: Sequence[str]) -> dict[str, DomainVersions]:
    """What matters of each domain. Raises RegistryUnavailable, RegistryError within seconds."""
    from redraft_models.errors import RegistryUnavailable

    if not domains:
        return {}
    uri = stack.tracking_uri
    try:
        if uri.startswith(_SQLITE):
            return read_database(Path(uri.removeprefix(_SQLITE)), domains, SECONDS)
        return read_server(uri, domains, SECONDS)
    except (sqlite3.Error, Refused, ValueError, KeyError, TypeError) as error:
        # Another MLflow, a proxy with rules of its own, a locked file: its own client knows better.
        logger.debug("the registry is asked through MLflow's client: %s", error)
        return by_client(stack.registry(), domains)
    except (OSError, http.client.HTTPException) as error:
        raise RegistryUnavailable(
            f"MLflow at {uri.rpartition('@')[2]} does not answer ({error or type(error).__name__}); start it "
            "or set MLFLOW_TRACKING_URI"
        ) from error


def by_client(registry: Registry, domains: Sequence[str]) -> dict[str, DomainVersions]:
    """The same through MLflow's client."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda domain: _domain(registry, domain), domains)
        return dict(zip(domains, found, strict=True))


def _domain(registry: Registry, domain: str) -> DomainVersions:
    names = registry.aliases
    aliased = {name: registry.alias(domain, name) for name in (names.champion, names.previous)}
    found = [
        registry.newest(domain),
        registry.cursor(domain),
        registry.running_canary(domain),
        *aliased.values(),
    ]
    numbers = {name: info.version for name, info in aliased.items() if info is not None}
    return chosen([_version(info) for info in found if info is not None], numbers)


def _version(info: VersionInfo) -> Version:
    return Version(info.version, info.created_ms, info.tags)
