"""Artifacts of servers that send more than they said: the disk gets no more than was allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redraft_models.errors import AdapterRejected
from redraft_models.registry_transfer import fetch

MIB = 1 << 20


class Liar(BaseHTTPRequestHandler):
    """Sends "/short" whole, and of anything else as much as is taken, up to 64 MiB."""

    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path.endswith("/short"):
            self.wfile.write(b"x" * 1000)
            return
        try:
            for _ in range(64):
                self.wfile.write(b"\0" * MIB)
                type(self).sent += MIB
        except ConnectionError:
            pass

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""


@pytest.fixture
def repository() -> Iterator[Any]:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    yield get_artifact_repository(f"{address}/api/2.0/mlflow-artifacts/artifacts/v")
    server.shutdown()
    server.server_close()


def test_what_fits_arrives_whole(repository: Any, tmp_path: Path) -> None:
    target = tmp_path / "short"
    assert fetch(repository, "short", target, 1000) == 1000
    assert target.read_bytes() == b"x" * 1000


def test_what_goes_on_is_cut_off(repository: Any, tmp_path: Path) -> None:
    """Neither the disk nor the wire sees the rest of it."""
    target = tmp_path / "endless"
    with pytest.raises(AdapterRejected, match=f"after the {3 * MIB} bytes"):
        fetch(repository, "endless", target, 3 * MIB)
    assert target.stat().st_size <= 3 * MIB
    assert Liar.sent < 32 * MIB


def test_one_byte_too_many_is_too_many(repository: Any, tmp_path: Path) -> None:
    with pytest.raises(AdapterRejected, match="after the 999 bytes"):
        fetch(repository, "short", tmp_path / "short", 999)


def test_a_local_file_is_measured_too(tmp_path: Path) -> None:
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "file").write_bytes(b"x" * 1000)
    local = LocalArtifactRepository((tmp_path / "store").as_uri())
    assert fetch(local, "file", tmp_path / "copy", 1000) == 1000
    with pytest.raises(AdapterRejected, match="after the 999 bytes"):
        fetch(local, "file", tmp_path / "copy", 999)
