"""The registry over HTTP on a real MLflow server."""

import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redraft_models.errors import AdapterRejected, RegistryError, RegistryUnavailable
from redraft_models.registry import Registry
from redraft_ops.valkey import free_port

pytestmark = pytest.mark.integration


@contextmanager
def mlflow_server(store: Path, port: int) -> Iterator[str]:
    """A real server on a database that exists, stopped at the end."""
    folder = store.parent
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{store}", "--artifacts-destination", str(folder / "served")),
        *("--workers", "1"),
    ]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until_healthy(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            assert process.poll() is None, "the MLflow server ended by itself"
        time.sleep(0.2)
    pytest.fail("the MLflow server did not become healthy in 120 s")


PATIENT = 60.0
"""Read limit where a test is not about limits: a server that just started on a busy machine is slow."""


@pytest.fixture(scope="module")
def early(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that was made, and asked in vain, before its server started."""
    port = free_port()
    registry = Registry(f"http://127.0.0.1:{port}", timeout_seconds=PATIENT)
    with pytest.raises(RegistryUnavailable):
        registry.champion("default")
    store = tmp_path_factory.mktemp("server") / "mlflow.db"
    shutil.copyfile(empty_store, store)
    with mlflow_server(store, port):
        yield registry


@pytest.fixture(scope="module")
def server(early: Registry) -> str:
    return early.tracking_uri


@pytest.fixture(scope="module")
def remote(server: str) -> Registry:
    return Registry(server, timeout_seconds=PATIENT)


def version_folder(parent: Path) -> Path:
    (parent / "files" / "adapter").mkdir(parents=True)
    (parent / "files" / "adapter" / "adapter_model.safetensors").write_bytes(os.urandom(100_000))
    (parent / "files" / "provenance.json").write_text("{}")
    return parent / "files"


def test_a_whole_round_over_http(remote: Registry, domain: str, tmp_path: Path) -> None:
    assert remote.champion(domain) is None
    assert not remote.champion_is_base(domain)
    files = version_folder(tmp_path)
    run_id = remote.start_run(domain, "round", {"rank": 8}, {"round_id": "r1"})
    remote.log_metrics(run_id, {"loss": 0.5}, 1)
    remote.log_artifacts(run_id, files, "version")
    remote.log_table(run_id, {"a": [1]}, "heldout.json")
    tags = {"validation_status": "pending", "decision": "promoted", "round_id": "r1"}
    assert remote.register(domain, run_id, tags) == 1
    remote.end_run(run_id)
    assert remote.start_run(domain, "round", {}, {"round_id": "r1"}) == run_id
    assert remote.register(domain, run_id, tags) == 1
    assert [info.version for info in remote.pending(domain)] == [1]
    assert remote.settle(domain, 1).validation_status == "approved"
    champion = remote.champion(domain)
    assert champion is not None
    assert champion.version == 1
    assert champion.source == f"runs:/{run_id}/version"
    folder = remote.download(domain, 1, tmp_path / "cache")
    weights = Path("adapter/adapter_model.safetensors")
    assert (folder / weights).read_bytes() == (files / weights).read_bytes()
    assert remote.rollback(domain) == (1, None)
    assert remote.champion_is_base(domain)
    with pytest.raises(RegistryError, match="find version 2"):
        remote.version(domain, 2)


def test_the_server_refuses_a_crafted_source_and_so_do_we_if_it_leads_to_this_machine(
    remote: Registry, domain: str, tmp_path: Path
) -> None:
    run_id = remote.start_run(domain, "round", {})
    remote.register(domain, run_id, {})
    for source in ("file:///etc", f"runs:/{run_id}/../../etc"):
        with pytest.raises(Exception, match="Invalid model version source"):
            remote._client.create_model_version(f"redraft-{domain}", source, run_id)
    with pytest.raises(AdapterRejected):
        remote._place("file:///etc")


def test_eight_threads_poll_a_fresh_registry_without_an_error(server: str, domain: str) -> None:
    registry = Registry(server, timeout_seconds=PATIENT)
    failures: list[BaseException] = []

    def poll() -> None:
        try:
            for _ in range(5):
                assert registry.champion(domain) is None
        except (RegistryError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=poll) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_nothing_is_written_to_standard_output(server: str) -> None:
    code = (
        "import sys; from redraft_models.registry import Registry; r = Registry(sys.argv[1]);"
        "run = r.start_run('quiet', 'round', {}); r.log_text(run, 'x', 'x.md'); r.end_run(run)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, server], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == ""


def test_a_registry_made_before_its_server_works_once_the_server_is_there(
    early: Registry, domain: str
) -> None:
    assert early.champion(domain) is None
    run_id = early.start_run(domain, "round", {})
    assert early.register(domain, run_id, {}) == 1
