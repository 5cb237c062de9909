"""`redraft up`: a whole deployment of real processes, whose parts are killed while requests run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redraft_ops.demo.client import Answer, Client
from redraft_ops.demo.prompts import word_prompts
from redraft_ops.demo.setup import free_port
from redraft_ops.demo.traffic import run_all

from .deployed import MODEL, WORDS, call, client_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
PATIENCE_SECONDS = 300.0
"""Not a limit on speed: a machine that runs other tests as well needs long to import."""
PARTS = ("serve", "worker", "beat", "mlflow", "valkey")


class Deployment:
    """`redraft up` in a folder."""

    def __init__(
        self, environment: dict[str, str], folder: Path, name: str = "up", without: tuple[str, ...] = ()
    ) -> None:
        self.file = folder / f"{name}.log"
        self.environment = environment
        with self.file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "redraft_ops", "up", *(f"--without={part}" for part in without)],
                cwd=folder,
                env=environment,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.file.read_text()

    def pid(self, part: str) -> int:
        return int(re.findall(rf" {part}: started \(process (\d+)\)", self.log)[-1])

    def ready(self, part: str) -> int:
        return len(re.findall(rf" {part}: ready", self.log))

    def await_ready(self, part: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.ready(part) < times:
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.1)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def client(self) -> Client:
        return client_of(self.environment)


class Traffic:
    """Requests one after the other until stopped."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._prompts = word_prompts(1, WORDS, 6, 20_000)
        self.answers: list[Answer] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            prompts = [self._prompts.pop() for _ in range(2)]
            self.answers += run_all(self._client, prompts, 2, lambda _: None, max_tokens=16)
            time.sleep(0.05)


@pytest.fixture
def environment(deployment_environment: dict[str, str]) -> dict[str, str]:
    return {
        **deployment_environment,
        "REDRAFT_SERVING__SERVED_MODEL_NAME": MODEL,
        "REDRAFT_UP__MLFLOW_PORT": str(free_port()),
    }


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], Deployment]]:
    started: list[Deployment] = []

    def begin(name: str) -> Deployment:
        started.append(Deployment(environment, tmp_path, name))
        for part in PARTS:
            started[-1].await_ready(part)
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(90)


def await_gone(family: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 60
    while left := [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def stream_length(environment: dict[str, str], folder: Path) -> int:
    (row,) = call(environment, folder, "status")
    return int(row["stream_length"])


def test_what_dies_comes_back_and_no_request_fails(
    start: Callable[[str], Deployment], environment: dict[str, str], tmp_path: Path
) -> None:
    deployment = start("first")
    client = deployment.client()
    with Traffic(client) as traffic:
        for part in ("worker", "beat", "mlflow", "valkey"):
            before = len(traffic.answers)
            os.kill(deployment.pid(part), signal.SIGKILL)
            deployment.await_ready(part, 2)
            assert len(traffic.answers) > before
        assert deployment.ready("serve") == 1
        os.kill(next(p.pid for p in deployment.family() if "valkey-server" in p.name()), signal.SIGKILL)
        deployment.await_ready("valkey", 3)
    assert not [a.error for a in traffic.answers if a.error], deployment.log

    os.kill(deployment.pid("serve"), signal.SIGKILL)
    deployment.await_ready("serve", 2)
    assert not [a.error for a in run_all(client, ["a1 b2"], 1, lambda _: None, max_tokens=8) if a.error]
    time.sleep(1.0)
    length = stream_length(environment, tmp_path)
    assert length >= 10

    family = deployment.family()
    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(100) == 0, deployment.log
    await_gone(family)
    stops = re.findall(r" (\w+): stopping", deployment.log)
    assert stops == list(PARTS)
    assert "Traceback" not in deployment.log

    again = start("second")
    assert stream_length(environment, tmp_path) == length
    twice = subprocess.run(
        [sys.executable, "-m", "redraft_ops", "up"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (twice.returncode, "another `redraft up`" in twice.stderr) == (2, True)
    family = again.family()
    again.process.kill()
    again.process.wait(10)
    await_gone(family)


def test_a_wrong_setting_is_told_and_not_tried_again(environment: dict[str, str], tmp_path: Path) -> None:
    wrong = {**environment, "REDRAFT_MODELS__DRAFT": str(tmp_path / "nowhere")}
    deployment = Deployment(wrong, tmp_path, without=("worker", "beat", "mlflow"))
    assert deployment.process.wait(PATIENCE_SECONDS) == 2
    assert deployment.log.count("serve: started") == 1
    assert "nowhere" in deployment.log.strip().splitlines()[-1]
    assert "Traceback" not in deployment.log
