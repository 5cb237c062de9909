"""The registry over HTTP: a real MLflow server, and servers that are away, broken, slow or hostile."""

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redraft_models.errors import AdapterRejected, RegistryError, RegistryUnavailable
from redraft_models.registry import Registry

pytestmark = pytest.mark.integration


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@pytest.fixture(scope="module")
def server(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("server") / "mlflow.db"
    shutil.copyfile(empty_store, store)
    with mlflow_server(store, free_port()) as url:
        yield url


@pytest.fixture(scope="module")
def remote(server: str) -> Registry:
    return Registry(server)


def version_folder(parent: Path) -> Path:
    (parent / "files" / "adapter").mkdir(parents=True)
    (parent / "files" / "adapter" / "adapter_model.safetensors").write_bytes(os.urandom(100_000))
    (parent / "files" / "provenance.json").write_text("{}")
    return parent / "files"


# A real server


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
    registry = Registry(server)
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


def test_a_registry_outlives_its_servers_absence(empty_store: Path, domain: str, tmp_path: Path) -> None:
    port = free_port()
    registry = Registry(f"http://127.0.0.1:{port}")
    with pytest.raises(RegistryUnavailable):
        registry.champion(domain)
    store = tmp_path / "mlflow.db"
    shutil.copyfile(empty_store, store)
    with mlflow_server(store, port):
        assert registry.champion(domain) is None
        run_id = registry.start_run(domain, "round", {})
        assert registry.register(domain, run_id, {}) == 1
    start = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        registry.champion(domain)
    assert time.monotonic() - start < 5


# Servers that are away, broken, slow or hostile


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request with what the test put into `reply`: (status, body), or a path-to-body map."""

    def do_GET(self) -> None:
        status, body = self.server.reply(self.path)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def fake_server(reply: object) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        server.reply = reply  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_closed_port_is_unavailable_at_once() -> None:
    registry = Registry(f"http://127.0.0.1:{free_port()}")
    start = time.monotonic()
    with pytest.raises(RegistryUnavailable, match=r"MLflow at http://127\.0\.0\.1"):
        registry.champion("default")
    assert time.monotonic() - start < 4


def test_a_silent_server_is_given_up_within_the_limit(silent: str) -> None:
    registry = Registry(silent, timeout_seconds=0.5)
    for call in (registry.champion, registry.champion_is_base, registry.versions):
        start = time.monotonic()
        with pytest.raises(RegistryUnavailable, match=r"within 0\.5 s"):
            call("default")
        assert time.monotonic() - start < 2


def test_without_our_limit_a_silent_server_would_hold_the_caller(silent: str) -> None:
    """The wrong variant: MLflow's client as it is."""
    registry = Registry(silent, timeout_seconds=0.5)

    def ask() -> None:
        with contextlib.suppress(Exception):
            registry._client.get_registered_model("x")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(3)
    assert thread.is_alive()


def test_unanswered_calls_do_not_pile_up(silent: str) -> None:
    registry = Registry(silent, timeout_seconds=0.05)
    for _ in range(16):
        with pytest.raises(RegistryUnavailable, match="did not"):
            registry.champion("default")
    with pytest.raises(RegistryUnavailable, match="16 earlier calls"):
        registry.champion("default")


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_a_failing_server_is_unavailable(status: int) -> None:
    with fake_server(lambda _: (status, b"oops")) as url:
        start = time.monotonic()
        with pytest.raises(RegistryUnavailable):
            Registry(url).champion("default")
        assert time.monotonic() - start < 4


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b"Invalid Host header - possible DNS rebinding attack detected"),
        (401, b"You are not authenticated."),
        (404, b"<html>Not Found</html>"),
        (200, b"<html>Welcome</html>"),
        (200, b'{"model_version": []}'),
    ],
)
def test_a_server_that_is_not_mlflow_or_lets_nobody_in_is_an_error_not_an_absent_champion(
    status: int, body: bytes
) -> None:
    with fake_server(lambda _: (status, body)) as url, pytest.raises(RegistryError):
        Registry(url).champion("default")


def test_credentials_in_the_address_are_not_shown() -> None:
    registry = Registry(f"http://user:secret@127.0.0.1:{free_port()}")
    with pytest.raises(RegistryUnavailable) as caught:
        registry.champion("default")
    assert "secret" not in str(caught.value)


RUN_ID = uuid.uuid4().hex


def hostile(listing: list[dict[str, object]], artifact_uri: str) -> object:
    """An MLflow server that names its own artifacts."""
    version = {
        "name": "redraft-default",
        "version": "1",
        "status": "READY",
        "source": f"runs:/{RUN_ID}/version",
    }
    run = {"run": {"info": {"run_id": RUN_ID, "artifact_uri": artifact_uri}, "data": {}}}

    def reply(path: str) -> tuple[int, bytes]:
        if "model-versions/get" in path:
            return 200, json.dumps({"model_version": version}).encode()
        if "runs/get" in path:
            return 200, json.dumps(run).encode()
        if path.partition("?")[0].endswith("/mlflow-artifacts/artifacts"):
            return 200, json.dumps({"files": listing}).encode()
        return 200, b"{}"

    return reply


@pytest.mark.parametrize(
    "path", ["../../outside", "/etc/outside", "a/../../../outside", "..%2foutside", "C:/x"]
)
def test_file_names_that_leave_the_folder_are_rejected_and_nothing_is_written(
    tmp_path: Path, path: str
) -> None:
    listing: list[dict[str, object]] = [{"path": path, "is_dir": False, "file_size": 3}]
    with (
        fake_server(hostile(listing, "mlflow-artifacts:/1/x/artifacts")) as url,
        pytest.raises((AdapterRejected, RegistryError)),
    ):
        Registry(url).download("default", 1, tmp_path / "a" / "b" / "cache")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_endless_folders_are_rejected(tmp_path: Path) -> None:
    listing: list[dict[str, object]] = [{"path": "deeper", "is_dir": True}]
    with (
        fake_server(hostile(listing, "mlflow-artifacts:/1/x/artifacts")) as url,
        pytest.raises(AdapterRejected, match="nested"),
    ):
        Registry(url).download("default", 1, tmp_path / "cache")


@pytest.mark.parametrize("uri", ["/etc", "file:///etc", "file:/etc"])
def test_a_server_may_not_name_folders_of_this_machine(tmp_path: Path, uri: str) -> None:
    with fake_server(hostile([], uri)) as url, pytest.raises(AdapterRejected, match="folder of this machine"):
        Registry(url).download("default", 1, tmp_path / "cache")
