"""The versions from MLflow's own sqlite file, with the standard library.

MLflow's client needs several seconds of a processor to be imported and to open the file. The tables read here
are those of its registry; where they are not as expected, the caller asks MLflow itself.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from redraft_models.registry_names import CANARY, RUNNING, model_name

from redraft_ops.glance.versions import CURSOR_TAG, DELETED_STAGE, DomainVersions, Version, chosen

_ALIASES = "SELECT name, alias, version FROM registered_model_aliases WHERE name IN ({names})"
_NUMBERS = """
SELECT name, MAX(version) FROM model_versions
 WHERE name IN ({names}) AND current_stage != ? GROUP BY name
UNION SELECT t.name, MAX(t.version) FROM model_version_tags t
 JOIN model_versions v ON v.name = t.name AND v.version = t.version AND v.current_stage != ?
 WHERE t.name IN ({names}) AND t.key = ? AND t.value LIKE '%-%' GROUP BY t.name
UNION SELECT t.name, t.version FROM model_version_tags t
 JOIN model_versions v ON v.name = t.name AND v.version = t.version AND v.current_stage != ?
 WHERE t.name IN ({names}) AND t.key = ? AND t.value = ?
"""
_TAGS = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
_CREATED = "SELECT creation_time FROM model_versions WHERE name = ? AND version = ?"


def read_database(file: Path, domains: Sequence[str], timeout_seconds: float) -> dict[str, DomainVersions]:
    """The versions of each domain; nothing where there is no file. Raises sqlite3.Error."""
    if not file.is_file():
        return {}
    address = f"file:{quote(str(file))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=timeout_seconds)) as database:
        return _read(database, {model_name(domain): domain for domain in domains})


def _read(database: sqlite3.Connection, models: dict[str, str]) -> dict[str, DomainVersions]:
    names = list(models)
    marks = ", ".join("?" * len(names))
    aliases: dict[str, dict[str, int]] = defaultdict(dict)
    wanted: dict[str, set[int]] = defaultdict(set)
    for name, alias, version in database.execute(_ALIASES.format(names=marks), names):
        aliases[name][alias] = int(version)
        wanted[name].add(int(version))
    values = [
        *names,
        DELETED_STAGE,
        *(DELETED_STAGE, *names, CURSOR_TAG),
        *(DELETED_STAGE, *names, CANARY, RUNNING),
    ]
    for name, version in database.execute(_NUMBERS.format(names=marks), values):
        wanted[name].add(int(version))
    return {
        models[name]: chosen([_version(database, name, number) for number in numbers], aliases[name])
        for name, numbers in wanted.items()
    }


def _version(database: sqlite3.Connection, name: str, number: int) -> Version:
    created = database.execute(_CREATED, (name, number)).fetchone()
    tags = {str(key): str(value) for key, value in database.execute(_TAGS, (name, number))}
    return Version(number, int(created[0] or 0) if created else 0, tags)
