"""A real MLflow server that answers 500 in the middle of a move, before or after carrying out the request."""

import http.client
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from redraft_models import registry_connection
from redraft_models.errors import RegistryUnavailable
from redraft_models.registry import Registry
from redraft_ops.valkey import free_port

pytestmark = pytest.mark.integration

PATIENT = 60.0
FAR = 10_000
FAILING = (1, 2, 4, 7)
"""Writes from which on the server fails; deaths at every single one are tested on sqlite, which is faster."""


class Proxy(http.server.ThreadingHTTPServer):
    """Hands requests on to a server, and fails all writes from the n-th on while `failing`."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Hand)
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.writes = 0
        self.fail_from = FAR
        self.late = False
        """Fail after the server has carried the request out: the answer is lost, not the write."""


class Hand(http.server.BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_write = self.command != "GET" and "/search" not in self.path
        self.server.writes += is_write
        fails = is_write and self.server.writes >= self.server.fail_from
        if fails and not self.server.late:
            self.answer(500, b"oops", "text/plain")
            return
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        data = response.read()
        upstream.close()
        if fails:
            self.answer(500, b"oops", "text/plain")
        else:
            self.answer(response.status, data, response.getheader("Content-Type") or "text/plain")

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET

    def answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def server(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    shutil.copyfile(empty_store, folder / "mlflow.db")
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"),
        *("--artifacts-destination", str(folder / "served")),
    ]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_healthy(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            assert process.poll() is None, "the MLflow server ended by itself"
        finally:
            connection.close()
        time.sleep(0.2)
    pytest.fail("the MLflow server did not become healthy in 120 s")


@pytest.fixture(scope="module")
def whole(server: str) -> Registry:
    return Registry(server, timeout_seconds=PATIENT)


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[Proxy]:
    with Proxy(server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def broken(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The same server through the proxy, with no pauses before a next try."""
    monkeypatch.setattr(registry_connection, "_WRITE_PAUSES", (0.0,))
    monkeypatch.setattr(registry_connection, "_READ_PAUSE", 0.0)
    proxy.fail_from = FAR
    return Registry(f"http://127.0.0.1:{proxy.server_address[1]}", timeout_seconds=PATIENT)


def version(registry: Registry, domain: str, folder: Path, **tags: object) -> int:
    run_id = registry.start_run(domain, "round", {})
    registry.log_artifacts(run_id, folder, "version")
    return registry.register(domain, run_id, tags)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"x" * 1000)
    (folder / "provenance.json").write_text("{}")
    return folder


PENDING: dict[str, object] = {"validation_status": "pending", "decision": "promoted", "parent_version": "1"}


def champion(registry: Registry, domain: str) -> int | None:
    info = registry.champion(domain)
    return info.version if info is not None else None


class Case:
    """A domain, what is done to it, and what must hold after it was done again."""

    def __init__(self, registry: Registry, files: Path) -> None:
        self.domain = f"test-{uuid.uuid4().hex[:8]}"
        self.registry, self.files = registry, files

    def add(self, **tags: object) -> int:
        return version(self.registry, self.domain, self.files, **tags)


class Settling(Case):
    tags: ClassVar[dict[str, object]] = PENDING

    def __init__(self, registry: Registry, files: Path) -> None:
        super().__init__(registry, files)
        registry._ensure_model(self.domain)
        model, client = f"redraft-{self.domain}", registry._client
        run_id = registry.start_run(self.domain, "round", {})
        for tags in ({}, self.tags):
            client.create_model_version(
                model, f"runs:/{run_id}/version", run_id, tags=tags, await_creation_for=0
            )
        client.set_registered_model_alias(model, "champion", "1")

    def act(self, registry: Registry) -> None:
        registry.settle(self.domain, 2, canary=True)

    def check(self) -> None:
        info = self.registry.running_canary(self.domain)
        assert info is not None
        assert (info.version, champion(self.registry, self.domain)) == (2, 1)


class Promoting(Settling):
    tags: ClassVar[dict[str, object]] = PENDING | {"validation_status": "approved", "canary": "running"}

    def act(self, registry: Registry) -> None:
        registry.promote(self.domain, 2, {"canary_requests": 5}, canary=True)

    def check(self) -> None:
        assert self.registry.running_canary(self.domain) is None
        previous = self.registry.alias(self.domain, "previous")
        assert previous is not None
        assert (previous.version, champion(self.registry, self.domain)) == (1, 2)
        assert self.registry.version(self.domain, 2).tags["canary"] == "passed"


class Adopting(Case):
    def __init__(self, registry: Registry, files: Path) -> None:
        super().__init__(registry, files)
        registry.promote(self.domain, self.add())
        self.source, self.domain = self.domain, f"{self.domain}-new"

    def act(self, registry: Registry) -> None:
        registry.adopt(self.domain, self.source, patience_seconds=0)

    def check(self) -> None:
        (only,) = self.registry.versions(self.domain)
        assert champion(self.registry, self.domain) == only.version
        assert only.validation_status == "approved"


class PruningOld(Case):
    def __init__(self, registry: Registry, files: Path) -> None:
        super().__init__(registry, files)
        for _ in range(2):
            self.add(validation_status="rejected")
        self.run_id = registry.version(self.domain, 1).run_id

    def act(self, registry: Registry) -> None:
        registry.prune(self.domain, keep=1)

    def check(self) -> None:
        assert [info.version for info in self.registry.versions(self.domain)] == [2]
        assert self.registry._client.list_artifacts(self.run_id) == []


@pytest.mark.parametrize("late", [False, True], ids=["refused", "answer_lost"])
@pytest.mark.parametrize("kind", [Settling, Promoting, Adopting, PruningOld])
def test_what_a_failing_server_broke_off_is_finished_by_a_repeat(
    whole: Registry,
    broken: Registry,
    proxy: Proxy,
    files: Path,
    kind: Callable[[Registry, Path], Case],
    late: bool,
) -> None:
    """From several writes on; where only people read, a failure is passed over."""
    failures = []
    for at in FAILING:
        case = kind(whole, files)
        proxy.writes, proxy.fail_from, proxy.late = 0, at, late
        try:
            case.act(broken)  # type: ignore[attr-defined]
        except RegistryUnavailable as error:
            failures.append(str(error))
        finally:
            proxy.fail_from = FAR
        case.act(broken)  # type: ignore[attr-defined]
        case.check()  # type: ignore[attr-defined]
    assert len(failures) >= 2
    assert not any("\n" in failure for failure in failures)
