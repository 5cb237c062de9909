"""The embedded Valkey: shared while someone uses it, gone with the last one, whatever ended it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis
from redraft_ops import valkey
from redraft_ops.errors import EmbeddedValkeyError
from redraft_ops.valkey import embedded_valkey, keeper_command, owned

USER = """
import sys, time
from pathlib import Path
from redraft_ops.valkey import embedded_valkey
with embedded_valkey(Path(sys.argv[1])) as url:
    print(url, flush=True)
    time.sleep(60)
"""


def answers(url: str) -> bool:
    try:
        return bool(redis.Redis.from_url(url, socket_timeout=1).ping())
    except redis.RedisError:
        return False


def user(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", USER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        return process, output.readline().strip()


def wait_gone(url: str) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and answers(url):
        time.sleep(0.05)
    return not answers(url)


@pytest.mark.integration
def test_users_share_one_server_and_the_last_one_stops_it(tmp_path: Path) -> None:
    with embedded_valkey(tmp_path) as url:
        other, theirs = user(tmp_path)
        assert theirs == url
    assert answers(url), "another process still uses it"
    other.send_signal(signal.SIGINT)
    other.wait(15)
    assert not answers(url)


@pytest.mark.integration
def test_folders_that_start_at_once_get_servers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(user, [tmp_path / str(number) for number in range(4)]))
    try:
        assert len({url for _, url in started}) == 4
        assert all(answers(url) for _, url in started)
    finally:
        for process, _ in started:
            process.terminate()
            process.wait(15)


@pytest.mark.integration
def test_a_killed_user_leaves_no_server_behind(tmp_path: Path) -> None:
    process, url = user(tmp_path)
    assert answers(url)
    process.kill()
    process.wait()
    assert wait_gone(url)


@pytest.mark.integration
def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    with embedded_valkey(tmp_path) as url:
        redis.Redis.from_url(url).set("kept", "yes")
    assert not answers(url)
    with embedded_valkey(tmp_path) as url:
        assert redis.Redis.from_url(url).get("kept") == b"yes"


@pytest.mark.integration
def test_a_folder_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "valkey.conf").mkdir()
    monkeypatch.setattr(valkey, "START_SECONDS", 5.0)
    with pytest.raises(EmbeddedValkeyError, match=r"keeper\.log"), embedded_valkey(tmp_path):
        pass


@pytest.mark.integration
def test_a_server_whose_keeper_was_killed_ends_before_the_next_one_writes(tmp_path: Path) -> None:
    process, url = user(tmp_path)
    redis.Redis.from_url(url).set("kept", 1)
    server = int((tmp_path / "server.pid").read_text())
    keeper = next(p for p in psutil.Process(process.pid).children() if "redraft_ops.valkey" in p.cmdline())
    keeper.kill()
    while keeper.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert answers(url), "the orphan goes on"
    with embedded_valkey(tmp_path) as again:
        assert not psutil.pid_exists(server) or psutil.Process(server).status() == psutil.STATUS_ZOMBIE
        assert redis.Redis.from_url(again).get("kept") == b"1"
    process.terminate()
    process.wait(15)


@pytest.mark.integration
def test_an_owned_folder_is_waited_for_and_not_started_by_others(tmp_path: Path) -> None:
    port = valkey.free_port()
    with owned(tmp_path):
        with (
            pytest.raises(EmbeddedValkeyError, match="redraft up"),
            _patience(0.5),
            embedded_valkey(tmp_path),
        ):
            pass
        keeper = subprocess.Popen(keeper_command(tmp_path, port))
        with embedded_valkey(tmp_path) as url:
            assert url == f"redis://127.0.0.1:{port}"
        assert answers(url), "the owner still uses it"
        keeper.terminate()
        assert keeper.wait(15) == 0


@pytest.mark.integration
def test_a_folder_in_use_is_not_owned(tmp_path: Path) -> None:
    with (
        embedded_valkey(tmp_path),
        _patience(0.5),
        pytest.raises(EmbeddedValkeyError, match="another redraft process"),
        owned(tmp_path),
    ):
        pass


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(valkey, "START_SECONDS", seconds)
        patch.setattr(valkey, "STOP_SECONDS", seconds)
        yield
