"""Clients that are slow, or mean to be, on a server with uvicorn's own protocol replaced by ours."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from redraft_serving.engine.interface import Emission
from redraft_serving.http.connections import openness, uvicorn_options
from redraft_serving.settings import ServingSettings
from transformers import PreTrainedTokenizerFast

from .scripted import TWO_WORDS, ScriptedEngine, application

PATIENCE = 0.5
WAIT = 10.0
"""Seconds after which a test gives up on a connection that should have been closed."""

Connect = Callable[..., tuple[str, int]]


@pytest.fixture
def listen(word_tokenizer: PreTrainedTokenizerFast) -> Iterator[Connect]:
    """`listen(engine, bare=False, **settings)`: address of a server; `bare` is uvicorn as it comes."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(engine: ScriptedEngine, bare: bool = False, **settings: Any) -> tuple[str, int]:
        app: FastAPI = application(
            engine, word_tokenizer, **{"client_seconds": PATIENCE, "max_body_bytes": 1 << 20, **settings}
        )
        options = {} if bare else uvicorn_options(app.state.context.settings)
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1, **options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return "127.0.0.1", int(listener.getsockname()[1])

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(timeout=10)


def everything(connection: socket.socket, drip: bytes = b"") -> bytes:
    """All that the server says until it closes, while `drip` is sent again and again."""
    connection.settimeout(0.05)
    deadline = time.monotonic() + WAIT
    said = b""
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            try:
                piece = connection.recv(65536)
            except ConnectionError:
                return said
            if not piece:
                return said
            said += piece
        if drip:
            with contextlib.suppress(ConnectionError):
                connection.sendall(drip)
    raise AssertionError(f"the connection is still open after {WAIT:g} s; it said {said[:200]!r}")


def head(length: int, extra: str = "") -> bytes:
    lines = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{extra}"
    return f"{lines}Content-Length: {length}\r\n\r\n".encode()


def test_a_head_that_never_ends_is_408(listen: Connect) -> None:
    """Each byte comes soon after the last one, and still the head has one end."""
    with socket.create_connection(listen(ScriptedEngine())) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
        assert everything(connection, drip=b"a").startswith(b"HTTP/1.1 408 ")


def test_uvicorn_alone_would_wait(listen: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong variant: what these tests look for is not there by itself."""
    monkeypatch.setitem(globals(), "WAIT", 3 * PATIENCE)
    with socket.create_connection(listen(ScriptedEngine(), bare=True)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(AssertionError, match="still open"):
            everything(connection, drip=b"a")


def test_a_connection_without_a_word_is_closed(listen: Connect) -> None:
    with socket.create_connection(listen(ScriptedEngine())) as connection:
        assert everything(connection) == b""


def test_a_body_that_drips_is_408(listen: Connect) -> None:
    engine = ScriptedEngine(TWO_WORDS)
    with socket.create_connection(listen(engine)) as connection:
        connection.sendall(head(10_000) + b'{"prompt": "')
        said = everything(connection, drip=b"a")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"0.5 s" in said
    assert not engine.submitted


def test_the_rest_of_a_refused_body_is_not_awaited_for_ever(listen: Connect) -> None:
    """Answered 401 before its body has come; the bytes that follow don't keep the connection."""
    address = listen(ScriptedEngine(TWO_WORDS), api_key="correct")
    with socket.create_connection(address) as connection:
        connection.sendall(head(1_000_000))
        assert everything(connection, drip=b"a" * 10).startswith(b"HTTP/1.1 401 ")


def test_the_second_request_of_a_connection_has_an_end_too(listen: Connect) -> None:
    with socket.create_connection(listen(ScriptedEngine())) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nX-Slow: ")
        said = everything(connection, drip=b"a")
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in said


def test_an_answer_that_nobody_reads_ends(listen: Connect) -> None:
    """The stream is far larger than what the two ends hold back, so the server waits for its client."""
    engine = ScriptedEngine((Emission("x" * 100_000, (4,)),) * 400)
    with socket.create_connection(listen(engine)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = b'{"prompt": "a", "stream": true, "max_tokens": 40}'
        connection.sendall(head(len(body)) + body)
        deadline = time.monotonic() + WAIT
        while not engine.cancelled and time.monotonic() < deadline:
            time.sleep(0.02)
    assert engine.cancelled == [engine.submitted[0].request_id]


def test_patient_clients_lose_nothing(listen: Connect) -> None:
    """A head, a body and an idle pause that each take less than the patience, on one connection."""
    body = b'{"prompt": "a"}'
    with socket.create_connection(listen(ScriptedEngine(TWO_WORDS), client_seconds=2.0)) as connection:
        for _ in range(3):
            sent = head(len(body))
            for part in (sent[:40], sent[40:], body[:5], body[5:]):
                connection.sendall(part)
                time.sleep(0.15)
            connection.settimeout(5)
            assert b"HTTP/1.1 200 " in connection.recv(65536)


def test_a_head_without_measure_is_refused(listen: Connect) -> None:
    """One that comes in parts is refused before it is whole: its bytes are held nowhere."""
    with socket.create_connection(listen(ScriptedEngine(), max_header_bytes=4096)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-Much: ")
        said = everything(connection, drip=b"a" * 2000)
    assert said.split(b" ")[1] in (b"400", b"431")


def test_connections_have_a_limit(listen: Connect) -> None:
    host, port = listen(ScriptedEngine(), max_connections=2, client_seconds=30.0)
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(socket.create_connection((host, port)))
        time.sleep(0.2)
        with httpx.Client(base_url=f"http://{host}:{port}") as client:
            assert client.get("/health").status_code == 503
    with httpx.Client(base_url=f"http://{host}:{port}") as client:
        deadline = time.monotonic() + 5
        while (status := client.get("/health").status_code) != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert status == 200


def test_answers_name_no_server(listen: Connect) -> None:
    host, port = listen(ScriptedEngine())
    assert "server" not in httpx.get(f"http://{host}:{port}/health").headers


@pytest.mark.parametrize(
    ("keys", "address", "words"),
    [
        ({}, "0.0.0.0", "ask, and steer"),
        ({}, "::", "ask, and steer"),
        ({}, "192.168.1.5", "ask, and steer"),
        ({"admin_key": "a"}, "0.0.0.0", "may ask;"),
        ({"api_key": "k"}, "0.0.0.0", None),
        ({"api_keys": {"shop": {"key": "k"}}}, "fe80::1%eth0", None),
        ({}, "127.0.0.1", None),
        ({}, "::1", None),
    ],
)
def test_an_open_door_is_told(keys: dict[str, Any], address: str, words: str | None) -> None:
    told = openness(ServingSettings(**keys), address)
    assert told is None if words is None else words in str(told)
