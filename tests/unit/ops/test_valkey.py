"""The embedded Valkey: shared while someone uses it, gone with the last one, whatever ended it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redraft_ops import valkey
from redraft_ops.errors import EmbeddedValkeyError
from redraft_ops.valkey import embedded_valkey

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
