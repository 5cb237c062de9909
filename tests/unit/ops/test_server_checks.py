"""What `redraft doctor` says of servers with wrong habits: real Valkey, and an MLflow's answers by HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
import redis
from redraft_ops import server_checks
from redraft_ops.server_checks import clock, mlflow_hosts, redis_habits
from redraft_ops.settings import Settings


@pytest.fixture
def settings(redis_url: str) -> Iterator[Settings]:
    with redis.Redis.from_url(redis_url) as client:
        before = {
            name: client.config_get(name)[name] for name in ("appendonly", "maxmemory", "maxmemory-policy")
        }
        client.config_set("appendonly", "yes")
        yield Settings.model_validate({"redis_url": redis_url})
        for name, value in before.items():
            client.config_set(name, value)


@pytest.mark.integration
def test_a_redis_that_keeps_everything_is_fine_and_others_are_told(settings: Settings) -> None:
    assert "appends to a file, evicts nothing" in redis_habits(settings)
    with redis.Redis.from_url(settings.redis_url.get_secret_value()) as client:  # type: ignore[union-attr]
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "of no limit" in redis_habits(settings)
        client.config_set("maxmemory", str(2**30))
        with pytest.raises(RuntimeError, match="evicts by allkeys-lru"):
            redis_habits(settings)
        client.config_set("appendonly", "no")
        with pytest.raises(RuntimeError, match=r"appends to no file.*; it evicts"):
            redis_habits(settings)


@pytest.mark.integration
def test_a_clock_that_is_wrong_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "agree" in clock(settings)
    now = server_checks.time.time
    monkeypatch.setattr(server_checks.time, "time", lambda: now() - 90)
    with pytest.raises(RuntimeError, match="90 s ahead of this machine's"):
        clock(settings)


class Mlflow(BaseHTTPRequestHandler):
    """Answers as MLflow's server does to a host name that it does not allow, or otherwise."""

    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b"{}"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, b"Invalid Host header - possible DNS rebinding attack detected", "--allowed-hosts 127.0.0.1"),
        (500, b"", "answers 500"),
        (200, b"{}", None),
    ],
)
def test_what_mlflow_thinks_of_our_name_for_it(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, said: str | None
) -> None:
    monkeypatch.setattr(Mlflow, "status", status)
    monkeypatch.setattr(Mlflow, "body", body)
    server = HTTPServer(("127.0.0.1", 0), Mlflow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://user:secret@127.0.0.1:{server.server_address[1]}"
    settings = Settings.model_validate({"mlflow_tracking_uri": address})
    try:
        if said is None:
            assert "secret" not in mlflow_hosts(settings)
        else:
            with pytest.raises(RuntimeError, match=said):
                mlflow_hosts(settings)
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(RuntimeError, match="does not answer"):
        mlflow_hosts(settings)


def test_a_file_has_no_names() -> None:
    assert mlflow_hosts(Settings.model_validate({})) == "no server, a file"
