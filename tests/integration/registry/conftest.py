"""One store for all registry tests of a session, and a candidate as a training round makes it."""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.registry import Registry

Candidate = Callable[..., int]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all tables, made once because MLflow takes seconds to make one."""
    database = tmp_path_factory.mktemp("empty") / "mlflow.db"
    Registry(f"sqlite:///{database}")
    return database


@pytest.fixture(scope="module")
def registry(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    database = tmp_path_factory.mktemp("registry") / "mlflow.db"
    shutil.copyfile(empty_store, database)
    return Registry(f"sqlite:///{database}")


@pytest.fixture
def domain() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


def version_folder(parent: Path, weights: bytes = b"weights") -> Path:
    folder = parent / uuid.uuid4().hex
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(weights)
    (folder / "provenance.json").write_text("{}")
    return folder


@pytest.fixture
def candidate(registry: Registry, domain: str, tmp_path: Path) -> Candidate:
    """Runs a round as the trainer does, up to the pending version."""

    def register(decision: str = "promoted", round_id: str | None = None, **tags: object) -> int:
        name = round_id or uuid.uuid4().hex
        run_id = registry.start_run(domain, f"round {name[:6]}", {"rank": 8}, {"round_id": name})
        registry.log_artifacts(run_id, version_folder(tmp_path), "version")
        values = {"validation_status": "pending", "decision": decision, "round_id": name, **tags}
        version = registry.register(domain, run_id, values)
        registry.end_run(run_id, "FINISHED")
        return version

    return register
