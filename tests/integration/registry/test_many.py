"""Many processes and threads on one sqlite store."""

import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.errors import RegistryError, RegistryUnavailable
from redraft_models.registry import Registry

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration


def version_folder(parent: Path, weights: bytes = b"weights") -> Path:
    folder = parent / uuid.uuid4().hex
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(weights)
    (folder / "provenance.json").write_text("{}")
    return folder


_REGISTER_IN_EIGHT_PROCESSES = """
import os, sys
from pathlib import Path
import mlflow.store.model_registry.sqlalchemy_store  # once, before the processes part
import mlflow.store.tracking.sqlalchemy_store
from redraft_models.registry import Registry

uri, domain, folder = sys.argv[1:]

def register(index):
    registry = Registry(uri)
    run_id = registry.start_run(domain, f"round {index}", {"index": index}, {"round_id": f"r{index}"})
    registry.log_metrics(run_id, {"loss": 1.0})
    registry.log_artifacts(run_id, Path(folder), "version")
    registry.register(domain, run_id, {"validation_status": "pending", "round_id": f"r{index}"})
    registry.end_run(run_id)

children = []
for index in range(8):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            register(index)
            status = 0
        finally:
            os._exit(status)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def test_eight_processes_registering_at_once_on_a_new_database_all_land(domain: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", _REGISTER_IN_EIGHT_PROCESSES, uri, domain, str(version_folder(tmp_path))],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    versions = Registry(uri).versions(domain)
    assert [info.version for info in versions] == list(range(8, 0, -1))
    assert {info.tags["round_id"] for info in versions} == {f"r{index}" for index in range(8)}
    assert not (tmp_path / "mlruns").exists()


def test_threads_share_one_registry_from_its_first_use(
    empty_store: Path, domain: str, tmp_path: Path
) -> None:
    database = tmp_path / "mlflow.db"
    shutil.copyfile(empty_store, database)
    registry = Registry(f"sqlite:///{database}")
    failures: list[BaseException] = []

    def poll(index: int) -> None:
        try:
            registry.champion(domain)
            run_id = registry.start_run(domain, "round", {}, {"round_id": f"r{index}"})
            registry.register(domain, run_id, {})
        except RegistryError as error:
            failures.append(error)

    threads = [threading.Thread(target=poll, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(registry.versions(domain)) == 8


def test_a_locked_database_is_unavailable_within_the_limit_and_works_again_after(
    empty_store: Path, domain: str, tmp_path: Path
) -> None:
    import sqlite3

    database = tmp_path / "mlflow.db"
    shutil.copyfile(empty_store, database)
    registry = Registry(f"sqlite:///{database}", timeout_seconds=1.0)
    holder = sqlite3.connect(database)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RegistryUnavailable):
        registry.champion(domain)
    # Nor does it stop a process that starts meanwhile. MLflow waits 20 s for a lock; here 0.1 s.
    from sqlalchemy import sql

    text = sql.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sql, "text", lambda words: text(words.replace("busy_timeout = 20000", "busy_timeout = 100"))
        )
        late = Registry(f"sqlite:///{database}", timeout_seconds=1.0)
        with pytest.raises(RegistryUnavailable):
            late.champion(domain)
    holder.rollback()
    holder.close()
    assert registry.champion(domain) is None
    assert late.champion(domain) is None


def test_writers_of_the_same_new_tag_and_alias_all_succeed(
    registry: Registry, domain_of_bare_versions: Callable[..., str]
) -> None:
    """On sqlite the slower one hits the row that the faster one has just made; trying again overwrites it."""
    failures: list[BaseException] = []

    def write(own: Registry, barrier: threading.Barrier, domain: str) -> None:
        try:
            barrier.wait()
            own._tag(domain, 1, {f"tag{index}": "x" for index in range(5)})
            own._point(domain, "champion", 1)
        except RegistryError as error:
            failures.append(error)

    writers = [Registry(registry.tracking_uri) for _ in range(4)]
    for _ in range(5):
        barrier, domain = threading.Barrier(len(writers)), domain_of_bare_versions({})
        threads = [threading.Thread(target=write, args=(own, barrier, domain)) for own in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
