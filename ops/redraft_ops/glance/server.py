"""The versions from an MLflow server, by its REST interface (mlflow.org, "REST API", Model Registry)."""

from __future__ import annotations

import base64
import http.client
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from redraft_models.registry_names import CANARY, RUNNING, model_name

from redraft_ops.connections import connect
from redraft_ops.glance.versions import CURSOR_TAG, DomainVersions, Version, chosen

AT_ONCE = 8
_ABSENT = "RESOURCE_DOES_NOT_EXIST"


class Refused(Exception):
    """The server answered, but not with what was asked for; `code` is MLflow's, if it is an MLflow."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"MLflow answered {status} {code}")
        self.code = code


def read_server(uri: str, domains: Sequence[str], timeout_seconds: float) -> dict[str, DomainVersions]:
    """The versions of each domain, several domains at a time. Raises OSError, HTTPException, Refused,
    ValueError.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda domain: _domain(uri, domain, timeout_seconds), domains)
        return dict(zip(domains, found, strict=True))


def _domain(uri: str, domain: str, timeout_seconds: float) -> DomainVersions:
    name = model_name(domain)
    connection = connect(uri, timeout_seconds)
    try:
        ask = _Asker(connection, uri)
        try:
            model = ask("registered-models/get", name=name)["registered_model"]
        except Refused as refused:
            if refused.code == _ABSENT:
                return DomainVersions()
            raise
        aliases = {one["alias"]: int(one["version"]) for one in model.get("aliases", [])}
        return chosen(_versions(ask, name, set(aliases.values())), aliases)
    finally:
        connection.close()


def _versions(ask: _Asker, name: str, aliased: set[int]) -> Iterator[Version]:
    """Each version that matters; what has no alias is found by one page of a search."""
    for condition in ("", f" AND tag.{CURSOR_TAG} LIKE '%-%'", f" AND tag.{CANARY} = '{RUNNING}'"):
        found = ask(
            "model-versions/search",
            filter=f"name = '{name}'{condition}",
            max_results=1,
            order_by="version_number DESC",
        )
        for one in found.get("model_versions", []):
            yield _version(one)
    for number in aliased:
        yield _version(ask("model-versions/get", name=name, version=number)["model_version"])


def _version(one: Mapping[str, Any]) -> Version:
    tags = {tag["key"]: tag.get("value", "") for tag in one.get("tags", [])}
    return Version(int(one["version"]), int(one.get("creation_timestamp") or 0), tags)


class _Asker:
    """GETs over one kept connection."""

    def __init__(self, connection: http.client.HTTPConnection, uri: str) -> None:
        self._connection = connection
        self._prefix = urlsplit(uri).path.rstrip("/")
        self._headers = _credentials(uri)

    def __call__(self, path: str, **query: object) -> Any:
        where = f"{self._prefix}/api/2.0/mlflow/{path}?{urlencode(query, quote_via=quote)}"
        self._connection.request("GET", where, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise Refused(response.status, _code(body))
        return json.loads(body)


def _code(body: bytes) -> str:
    """MLflow's own code: a wrong path on any server is a 404 as well."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    return str(answer.get("error_code", "")) if isinstance(answer, dict) else ""


def _credentials(uri: str) -> dict[str, str]:
    """As MLflow takes them: from the address, or MLFLOW_TRACKING_TOKEN, _USERNAME and _PASSWORD."""
    parts = urlsplit(uri)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    user = user or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = password or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    if user:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}
