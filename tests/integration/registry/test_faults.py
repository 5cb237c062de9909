"""The registry against servers that are away, broken, slow or hostile."""

import contextlib
import http.server
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redraft_models.errors import AdapterRejected, RegistryError, RegistryUnavailable
from redraft_models.registry import Registry
from redraft_ops.valkey import free_port

pytestmark = pytest.mark.integration


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


SERVED = "mlflow-artifacts:/1/x/artifacts"
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
        fake_server(hostile(listing, SERVED)) as url,
        pytest.raises((AdapterRejected, RegistryError)),
    ):
        Registry(url).download("default", 1, tmp_path / "a" / "b" / "cache")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_endless_folders_are_rejected(tmp_path: Path) -> None:
    listing: list[dict[str, object]] = [{"path": "deeper", "is_dir": True}]
    with (
        fake_server(hostile(listing, SERVED)) as url,
        pytest.raises(AdapterRejected, match="nested"),
    ):
        Registry(url).download("default", 1, tmp_path / "cache")


@pytest.mark.parametrize("uri", ["/etc", "file:///etc", "file:/etc"])
def test_a_server_may_not_name_folders_of_this_machine(tmp_path: Path, uri: str) -> None:
    with fake_server(hostile([], uri)) as url, pytest.raises(AdapterRejected, match="folder of this machine"):
        Registry(url).download("default", 1, tmp_path / "cache")
