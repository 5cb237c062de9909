"""What `redraft status` makes of whatever answers at the serving worker's address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from redraft_ops.errors import ServerUnreachable
from redraft_ops.settings import Settings
from redraft_ops.status import _drafts, _policy, _reasons


class Foreign(BaseHTTPRequestHandler):
    """Another program on the port that a serving worker would have."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),
        (200, b"<html>"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b'{"data": 1}'),
        (200, b'{"data": [{"domain": "default"}]}'),
        (200, b'{"data": [1]}'),
    ],
)
def test_another_program_on_the_port_is_a_remark_unless_its_address_was_given(
    port: int, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    monkeypatch.setattr(Foreign, "status", status)
    monkeypatch.setattr(Foreign, "body", body)
    settings = Settings.model_validate({"serving": {"host": "127.0.0.1", "port": port}})
    drafts, (remark,) = _drafts(settings, None)
    assert drafts == {}
    assert str(port) in remark
    with pytest.raises(ServerUnreachable, match=str(port)):
        _drafts(settings, f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("serving", "gain"),
    [
        (None, None),
        ({}, None),
        ({"policy": None}, None),
        ({"policy": []}, None),
        ({"policy": {"measured_gain": 1.4}}, 1.4),
    ],
)
def test_gain_of_a_worker_that_may_be_older(serving: dict[str, object] | None, gain: float | None) -> None:
    assert _policy(serving).get("measured_gain") == gain


def test_the_reason_of_every_shown_domain_is_told() -> None:
    drafts: dict[str, dict[str, object]] = {
        "law": {"policy": {"reason": "off: measured 0.91 times plain decoding, whatever the model promises"}},
        "met": {"policy": None},
        "hidden": {"policy": {"reason": "fixed: the setting asks for 3 tokens a round"}},
    }
    assert _reasons(drafts, ["law", "met", "new"]) == [
        "domain law, off: measured 0.91 times plain decoding, whatever the model promises"
    ]
