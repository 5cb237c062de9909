"""Whether a part does its work: each probe asks for what the part is there for, within about a second."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from redraft_queue.errors import StreamUnavailable
from redraft_queue.heartbeat import heartbeats
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect

from redraft_ops.connections import connect as connect_http

SECONDS = 1.0
Probe = Callable[[int], bool]


def valkey_answers(port: int) -> Probe:
    """PING on the loopback: it has loaded its data. A bare connection would be taken earlier."""

    def ready(_pid: int) -> bool:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as server:
            server.sendall(b"*1\r\n$4\r\nPING\r\n")
            return server.recv(16).startswith(b"+PONG")

    return ready


def registry_answers(url: str) -> Probe:
    """A call of the registry. `/health` is green even where the API refuses the host's name."""

    def ready(_pid: int) -> bool:
        connection = connect_http(url, SECONDS)
        prefix = urlsplit(url).path.rstrip("/")
        try:
            body = json.dumps({"max_results": 1})
            path = f"{prefix}/api/2.0/mlflow/experiments/search"
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    return ready


def serving_answers(url: str) -> Probe:
    """/ready: models loaded, not draining."""

    def ready(_pid: int) -> bool:
        connection = connect_http(url, SECONDS)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    return ready


def shows_life(redis_url: str, role: str) -> Probe:
    """The process's own heartbeat is in Redis."""
    settings = QueueSettings.model_validate({"socket_timeout_seconds": SECONDS})
    client = connect(redis_url, settings)

    def ready(pid: int) -> bool:
        try:
            signs = heartbeats(client)
        except StreamUnavailable:
            return False
        host = socket.gethostname()
        return any((sign.role, sign.host, sign.pid) == (role, host, pid) for sign in signs)

    return ready


def loopback(host: str) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def free_at_or_after(port: int, most: int = 20) -> int:
    """`port`, or the next one on the loopback that nobody listens on. Raises OSError."""
    for candidate in range(port, port + most):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    raise OSError(f"the ports {port} to {port + most - 1} are all taken")
