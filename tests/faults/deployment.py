"""A whole deployment as processes: Valkey, MLflow behind a proxy, serving workers, training workers, beat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from redraft_models.registry import Registry
from redraft_ops.valkey import free_port
from redraft_queue.heartbeat import heartbeats
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect

from .probes import answers, until
from .proxy import Proxy
from .servers import Mlflow, Valkey

START_SECONDS = 120.0
STOP_SECONDS = 40.0
CAPTURE_BUFFER = 20_000
"""Samples of a minute without Redis, and far more."""

SETTINGS = {
    "MODELS__DEVICE": "cpu",
    "MODELS__MAX_MODEL_LEN": "256",
    "SERVING__SERVED_MODEL_NAME": "toy",
    "SERVING__POLL_SECONDS": "0.5",
    "SERVING__NUM_SPECULATIVE_TOKENS": "3",
    "SERVING__PROPOSERS": '["draft"]',
    "SERVING__CAPTURE_BUFFER": str(CAPTURE_BUFFER),
    "SERVING__CANARY__SHARE": "0",
    "SERVING__CANARY__WATCH_SHARE": "0",
    "QUEUE__LOCK_TTL_SECONDS": "6",
    "QUEUE__HEARTBEAT_TTL_SECONDS": "6",
    "QUEUE__SOCKET_TIMEOUT_SECONDS": "1",
    "QUEUE__MIN_NEW_TOKENS": "600",
    "QUEUE__SCHEDULE_SECONDS": "5",
    "QUEUE__MAX_BACKOFF_SECONDS": "5",
    "QUEUE__TICK_SECONDS": "1",
    "QUEUE__ROUND_TIME_LIMIT_SECONDS": "120",
    "TRAINER__LEARNING_RATE": "3e-3",
    "TRAINER__MAX_STEPS": "20",
    "TRAINER__RANK": "16",
    "TRAINER__LORA_ALPHA": "32",
    "TRAINER__EVAL_EVERY": "10",
    "TRAINER__NUM_THREADS": "1",
    "TRAINER__PRIORITY": "low",
    "GATE__MIN_HELDOUT_REQUESTS": "5",
    "GATE__MIN_HELDOUT_TOKENS": "50",
}


@dataclass
class Process:
    """One redraft process."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    @property
    def pid(self) -> int:
        """Its id."""
        return self.popen.pid

    @property
    def url(self) -> str:
        """Where a serving worker answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it lives."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process alone: what it started has to notice by itself."""
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to the whole session where that does not help."""
        if self.alive:
            self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait()


@dataclass
class Deployment:
    """Everything that runs, and the test's own view of it."""

    folder: Path
    pair: tuple[Path, Path]
    valkey: Valkey
    mlflow: Mlflow
    proxy: Proxy
    overrides: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        folder: Path,
        pair: tuple[Path, Path],
        extra: Mapping[str, str] | None = None,
        **overrides: str,
    ) -> Deployment:
        """Nothing runs yet. `extra` are variables of all processes, `overrides` are settings."""
        valkey = Valkey(folder / "valkey", "valkey", extra)
        mlflow = Mlflow(folder / "mlflow", "mlflow", extra)
        return cls(folder, pair, valkey, mlflow, Proxy(mlflow.port), overrides, extra or {})

    def start_servers(self) -> None:
        """Valkey and MLflow answer."""
        self.mlflow.launch()
        self.valkey.start()
        self.mlflow.wait_ready()

    def environment(self) -> dict[str, str]:
        """Of each redraft process, the test's own settings left out."""
        mine = ("REDRAFT_", "MLFLOW_TRACKING_URI")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        target, draft = self.pair
        settings = {**SETTINGS, "MODELS__TARGET": str(target), "MODELS__DRAFT": str(draft), **self.overrides}
        places = {
            "REDIS_URL": self.valkey.url,
            "DATA_DIR": str(self.folder / "data"),
            "CACHE_DIR": str(self.folder / "cache"),
        }
        own = {f"REDRAFT_{name}": value for name, value in (settings | places).items()}
        return {**kept, **self.extra, **own, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.proxy.port}"}

    def run(self, name: str, *arguments: str, script: Path | None = None, **changes: str) -> Process:
        """Start `redraft ARGUMENTS`, or a script; `changes` are variables of its environment."""
        log = self.folder / f"{name}.log"
        program = [str(script)] if script else ["-m", "redraft_ops"]
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [sys.executable, *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**self.environment(), "PYTHONUNBUFFERED": "1", **changes},
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def serve(self, name: str = "serve", port: int | None = None, **changes: str) -> Process:
        """Start a serving worker; `ready` waits for it."""
        port = port or free_port()
        process = self.run(name, "serve", REDRAFT_SERVING__PORT=str(port), **changes)
        process.port = port
        return process

    def worker(self, name: str = "worker", **changes: str) -> Process:
        """Start a training worker."""
        return self.run(name, "worker", **changes)

    def beat(self, name: str = "beat", **changes: str) -> Process:
        """Start a clock."""
        return self.run(name, "beat", **changes)

    def ready(self, process: Process) -> None:
        """Wait until a serving worker answers."""
        until(lambda: answers(process.url), START_SECONDS, f"{process.name} is not ready", process)

    def heard(self, process: Process) -> None:
        """Wait for a process's heartbeat."""
        with self.valkey.client() as client:
            until(
                lambda: process.pid in {sign.pid for sign in heartbeats(client)},
                START_SECONDS,
                f"no heartbeat of {process.name}",
                process,
            )

    def registry(self) -> Registry:
        """The registry as it is, past the proxy."""
        return Registry(f"http://127.0.0.1:{self.mlflow.port}", timeout_seconds=60)

    def stream(self) -> SampleStream:
        """The samples."""
        settings = QueueSettings(socket_timeout_seconds=10)
        return SampleStream(connect(self.valkey.url, settings), settings)

    def logs(self) -> str:
        """The end of each process's log."""
        return "".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}\n"
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self.proxy.heal()
        self.valkey.thaw()
        for process in reversed(self.processes):
            if process.alive:
                process.popen.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            process.stop()
        self.proxy.close()
        self.mlflow.stop(signal.SIGKILL)
        self.valkey.stop(signal.SIGKILL)
