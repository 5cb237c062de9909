"""The compose files, structurally: a machine without a container engine can't run them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from redraft_ops import cli
from redraft_ops.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


def test_the_loop_is_complete(services: dict[str, Any]) -> None:
    assert set(services) == {"redis", "mlflow", "serving", "worker", "beat", "prometheus", "grafana"}
    optional = {name for name, service in services.items() if service.get("profiles") == ["monitoring"]}
    assert optional == {"prometheus", "grafana"}


def test_every_service_is_watched_restarted_and_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["healthcheck"]["test"], name
        assert service["restart"] == "unless-stopped", name
        assert service["init"] is True, name
        if "image" in service:
            assert ":" in service["image"]
            assert not service["image"].endswith(":latest")
        else:
            assert (ROOT / service["build"]["dockerfile"]).is_file(), name


def test_dependencies_wait_for_health(services: dict[str, Any]) -> None:
    for service in services.values():
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in services
            assert condition == {"condition": "service_healthy"}


def test_ports_are_on_the_loopback_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_several_serving_workers_find_ports_and_no_service_has_a_fixed_name(services: dict[str, Any]) -> None:
    (port,) = services["serving"]["ports"]
    first, last = re.fullmatch(r"127\.0\.0\.1:\$\{SERVING_PORTS:-(\d+)-(\d+)\}:8000", port).groups()  # type: ignore[union-attr]
    assert int(last) - int(first) >= 7
    assert not any("container_name" in service for service in services.values())
    assert not services["worker"].get("ports")


@pytest.mark.parametrize(
    "secret",
    ["REDIS_PASSWORD", "REDRAFT_SERVING__API_KEY", "REDRAFT_SERVING__ADMIN_KEY", "GRAFANA_ADMIN_PASSWORD"],
)
def test_secrets_have_no_default(secret: str) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    uses = re.findall(rf"\$\{{{secret}([^}}]*)\}}", text)
    assert uses
    assert all(use.startswith(":?") for use in uses)


def test_nothing_gains_rights(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["cap_drop"] == ["ALL"], name
        assert not service.get("privileged"), name


def test_every_named_volume_is_declared_and_every_folder_there(services: dict[str, Any]) -> None:
    declared = set(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["volumes"])
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).is_dir() if source.startswith(".") else source in declared, volume


def test_redis_keeps_what_it_is_given(services: dict[str, Any]) -> None:
    command = " ".join(services["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "--requirepass" in command


def test_commands_are_commands_of_the_command_line(services: dict[str, Any]) -> None:
    known = {(command.name or command.callback.__name__) for command in cli.app.registered_commands}
    for name in ("serving", "worker", "beat"):
        program, command, *_ = services[name]["command"]
        assert program == "redraft"
        assert command in known


def test_health_commands_parse_and_name_real_modules(services: dict[str, Any]) -> None:
    for service in services.values():
        test = service["healthcheck"]["test"]
        if test[1:3] == ["python", "-c"]:
            ast.parse(test[3])
        if test[0] == "CMD-SHELL":
            assert subprocess.run(["sh", "-n", "-c", test[1]]).returncode == 0
        if test[1:3] == ["python", "-m"]:
            assert (ROOT / "ops" / f"{test[3].replace('.', '/')}.py").is_file()


def test_mlflow_accepts_its_service_name(services: dict[str, Any]) -> None:
    (hosts,) = [part for part in services["mlflow"]["command"] if part.startswith("--allowed-hosts")]
    assert "mlflow:*" in hosts


def test_environment_names_are_settings(services: dict[str, Any]) -> None:
    for name in ("serving", "worker", "beat"):
        for variable in services[name]["environment"]:
            if variable != "MLFLOW_TRACKING_URI":
                section = variable.removeprefix("REDRAFT_").lower().split("__")
                model: Any = Settings
                for part in section:
                    assert part in model.model_fields, variable
                    model = model.model_fields[part].annotation


def test_every_setting_reaches_our_services(services: dict[str, Any]) -> None:
    """Only some variables are named in the file; a schedule in .env must not be passed over in silence."""
    for name in ("serving", "worker", "beat"):
        assert services[name]["env_file"] == [{"path": ".env", "required": False}]
    # What the file's other lines rely on can't be turned by it.
    assert services["serving"]["environment"]["REDRAFT_SERVING__PORT"] == "8000"
    assert services["serving"]["ports"][0].endswith(":8000")


def test_defaults_are_those_of_the_settings(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file gives where a variable is not set changes nothing of what the program would take."""
    for name in [name for name in os.environ if name.startswith("REDRAFT_")]:
        monkeypatch.delenv(name)
    plain = Settings(_env_file=None)  # type: ignore[call-arg]
    found = _defaults(services["serving"]["environment"])
    assert {"REDRAFT_SERVING__NUM_SPECULATIVE_TOKENS", "REDRAFT_MODELS__DTYPE"} <= found.keys()
    for variable, text in found.items():
        monkeypatch.setenv(variable, text)
    assert Settings(_env_file=None) == plain  # type: ignore[call-arg]
    monkeypatch.setenv("REDRAFT_SERVING__NUM_SPECULATIVE_TOKENS", "3")
    assert Settings(_env_file=None) != plain  # type: ignore[call-arg]


def _defaults(environment: dict[str, Any]) -> dict[str, str]:
    """`value` of each VARIABLE: ${VARIABLE:-value}."""
    found = {}
    for variable, text in environment.items():
        match = re.fullmatch(r"\$\{(\w+):-(.*)\}", str(text))
        if match is not None:
            assert match[1] == variable
            found[variable] = match[2]
    return found


def test_images_do_not_run_as_root() -> None:
    for path in ("serving/Dockerfile", "trainer/Dockerfile", "ops/mlflow/Dockerfile"):
        lines = (ROOT / path).read_text().splitlines()
        assert any(line.startswith("USER ") for line in lines), path


def test_the_gpu_file_only_adds_devices() -> None:
    extra = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())["services"]
    assert set(extra) == {"serving", "worker"}
    assert all(set(service) == {"deploy"} for service in extra.values())
