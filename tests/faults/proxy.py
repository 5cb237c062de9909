"""A reverse proxy before MLflow that can be slow, answer 500, cut answers short, spoil bytes, hold a request.

What is asked for passes through unchanged until a test sets one of the attributes; each says what it does.
"""

from __future__ import annotations

import http.client
import http.server
import math
import re
import socket
import threading
from contextlib import suppress
from typing import Any

from redraft_ops.valkey import free_port

TIMEOUT_SECONDS = 120.0
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy:
    """Listens on `port` for as long as it is up; passes on to `backend_port`."""

    def __init__(self, backend_port: int) -> None:
        self.backend_port = backend_port
        self.port = free_port()
        self.seen: list[str] = []
        self._server: _HttpServer | None = None
        self.heal()
        self.up()

    def heal(self) -> None:
        """No fault; what is held is let go."""
        if hasattr(self, "release"):
            self.release.set()
        self.slow_seconds = 0.0
        """Wait so long before each answer."""
        self.status: int | None = None
        """Answer this instead of asking the server."""
        self.cut = False
        """Announce the whole answer, send half of it and close."""
        self.spoil: str | None = None
        """Turn over bits in the answers to requests that this pattern matches."""
        self.spoil_most = math.inf
        """Spoil so many answers, and pass on those that follow."""
        self.hold: str | None = None
        """Neither pass on nor answer requests that this pattern ("METHOD path") matches, and drop them at
        `release`.
        """
        self.held = threading.Event()
        """Set once a request is held."""
        self.release = threading.Event()

    def up(self) -> None:
        """Take connections."""
        if self._server is None:
            self._server = _HttpServer(("127.0.0.1", self.port), _Handler)
            self._server.proxy = self
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and drop those that are open."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.drop_connections()
            self._server = None

    def close(self) -> None:
        """End of the test run."""
        self.release.set()
        self.down()


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: Proxy

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def _pass(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = f"{self.command} {self.path}"
        proxy.seen.append(name)
        if proxy.hold and re.search(proxy.hold, name):
            proxy.held.set()
            proxy.release.wait(TIMEOUT_SECONDS)
            self.close_connection = True
            return
        if proxy.slow_seconds:
            proxy.release.wait(proxy.slow_seconds)
        if proxy.status is not None:
            self._answer(proxy.status, [("Content-Type", "text/plain")], b"out of order")
            return
        status, headers, answer = self._ask(proxy.backend_port, body)
        if proxy.spoil and proxy.spoil_most > 0 and re.search(proxy.spoil, name):
            proxy.spoil_most -= 1
            middle = len(answer) // 2
            answer = answer[:middle] + bytes(byte ^ 0xFF for byte in answer[middle:])
        self._answer(status, headers, answer, half=proxy.cut)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _pass

    def _ask(self, port: int, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, half: bool = False) -> None:
        self.send_response(status)
        for key, value in headers:
            if key.lower() not in _HOP_BY_HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection = half or self.close_connection

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""
