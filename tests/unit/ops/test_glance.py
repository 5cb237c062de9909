"""The quick readers of the registry say what the registry itself says, and a big store is read in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redraft_models.registry import Registry
from redraft_ops.glance.database import read_database
from redraft_ops.glance.registry import by_client, versions_of
from redraft_ops.glance.server import Refused, read_server
from redraft_ops.glance.versions import DomainVersions
from redraft_ops.settings import Settings
from redraft_ops.stack import Stack
from redraft_ops.up.mlflow_server import server_command
from redraft_ops.up.probes import registry_answers
from redraft_ops.valkey import free_port

pytestmark = pytest.mark.integration
PATIENCE_SECONDS = 60.0
Redraft = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tracking_uri: str, tmp_path: Path) -> Registry:
    """Domain `law`: version 1 previous, 2 champion, 3 in a canary, 4 rejected, 5 deleted, 6 by hand."""
    registry = Registry(tracking_uri, artifact_root=tmp_path / "artifacts")
    registry._ensure_model("law")
    for number in range(1, 7):
        tags = {
            "round_id": f"r{number}",
            "stream_last_id": f"{number}-0",
            "decision_reason": f"it's {number}",
        }
        registry._client.create_model_version(
            "redraft-law", source="runs:/r/version", tags={} if number == 6 else tags, await_creation_for=0
        )
    registry.promote("law", 1)
    registry.promote("law", 2)
    registry.set_tags("law", 3, {"validation_status": "approved", "canary": "running"})
    registry.reject("law", 4)
    registry._client.delete_model_version("redraft-law", "5")
    return registry


@pytest.fixture
def server(store: Registry, tmp_path: Path) -> Iterator[str]:
    """An MLflow server over the same store."""
    port = free_port()
    database = Path(store.tracking_uri.removeprefix("sqlite:///"))
    process = subprocess.Popen(
        server_command(database, tmp_path / "artifacts", port),
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    url = f"http://127.0.0.1:{port}"
    ready, deadline = registry_answers(url), time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if ready(0):
                break
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield url
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(20)


def stack_of(uri: str, tmp_path: Path) -> Stack:
    return Stack("redis://127.0.0.1:1", uri, tmp_path / "artifacts", Settings.model_validate({}))


def numbers(found: DomainVersions) -> dict[str, int | None]:
    names = ("champion", "previous", "canary", "newest", "cursor")
    return {name: one.number if (one := getattr(found, name)) else None for name in names}


def test_file_and_server_say_what_the_client_says(store: Registry, server: str, tmp_path: Path) -> None:
    domains = ["law", "new"]
    expected = by_client(store, domains)
    assert numbers(expected["law"]) == {"champion": 2, "previous": 1, "canary": 3, "newest": 6, "cursor": 4}
    assert expected["new"] == DomainVersions()
    assert read_server(server, domains, 5.0) == expected
    found = read_database(Path(store.tracking_uri.removeprefix("sqlite:///")), domains, 5.0)
    assert {"new": DomainVersions(), **found} == expected
    assert versions_of(stack_of(server, tmp_path), domains) == expected
    with pytest.raises(Refused):
        read_server(f"{server}/elsewhere", ["law"], 5.0)


def test_a_database_of_another_kind_is_left_to_the_client(store: Registry, tmp_path: Path) -> None:
    import sqlite3

    file = Path(store.tracking_uri.removeprefix("sqlite:///"))
    expected = by_client(store, ["law"])
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE model_versions RENAME COLUMN current_stage TO stage_of_now")
    with pytest.raises(sqlite3.Error):
        read_database(file, ["law"], 5.0)
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE model_versions RENAME COLUMN stage_of_now TO current_stage")
        database.execute("ALTER TABLE registered_model_aliases RENAME TO aliases_of_now")
        database.execute("CREATE VIEW registered_model_aliases AS SELECT * FROM aliases_of_now")
    assert versions_of(stack_of(store.tracking_uri, tmp_path), ["law"]) == expected


def test_no_database_is_no_version_and_makes_none(tmp_path: Path) -> None:
    assert versions_of(stack_of(f"sqlite:///{tmp_path / 'none.db'}", tmp_path), ["law"]) == {}
    assert not (tmp_path / "none.db").exists()


def test_a_big_store_is_read_without_the_heavy_libraries(
    prepared_store: Callable[[int, int], str], redis_url: str, redraft: Redraft
) -> None:
    """500 versions and 100,000 samples. What makes it quick is held, not the time: no heavy import, and a
    fixed number of rows read.
    """
    uri = prepared_store(500, 100_000)
    script = (
        "import sys, runpy; sys.argv = ['redraft', 'status', '--json']\n"
        "try: runpy.run_module('redraft_ops', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'mlflow', 'celery', 'pandas') if name in sys.modules])"
    )
    environment = {"REDRAFT_REDIS_URL": redis_url, "MLFLOW_TRACKING_URI": uri, "REDRAFT_SERVING__PORT": "9"}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document, modules = done.stdout.strip().splitlines()
    (row,) = json.loads(document)
    assert (row["version"], row["stream_length"], row["unseen"]) == (499, 100_000, 99_500)
    assert row["last_round"]["version"] == 500
    assert modules == "[]", f"{modules} imported; it took {time.monotonic() - begun:.1f} s"
