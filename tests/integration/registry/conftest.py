"""One store for all registry tests of a session, and a candidate as a training round makes it."""

import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
def candidate_in(registry: Registry, tmp_path: Path) -> Candidate:
    """Runs a round of a domain as the trainer does, up to the pending version."""

    def register(domain: str, decision: str = "promoted", round_id: str | None = None, **tags: object) -> int:
        name = round_id or uuid.uuid4().hex
        run_id = registry.start_run(domain, f"round {name[:6]}", {"rank": 8}, {"round_id": name})
        registry.log_artifacts(run_id, version_folder(tmp_path), "version")
        values = {"validation_status": "pending", "decision": decision, "round_id": name, **tags}
        version = registry.register(domain, run_id, values)
        registry.end_run(run_id, "FINISHED")
        return version

    return register


@pytest.fixture
def candidate(candidate_in: Candidate, domain: str) -> Candidate:
    """A round of the test's own domain."""
    return partial(candidate_in, domain)


@pytest.fixture
def domain_of_bare_versions(registry: Registry) -> Callable[..., str]:
    """`make(tags of version 1, tags of version 2, ..., champion=1)`: a fresh domain whose versions have
    neither runs nor files, which takes milliseconds.
    """

    def make(*versions: dict[str, object], **aliases: int) -> str:
        domain = f"test-{uuid.uuid4().hex[:8]}"
        registry._ensure_model(domain)
        model, client = f"redraft-{domain}", registry._client
        for tags in versions:
            values = {key: str(value) for key, value in tags.items()}
            client.create_model_version(model, "mlflow-artifacts:/none", tags=values, await_creation_for=0)
        for name, version in aliases.items():
            client.set_registered_model_alias(model, name, str(version))
        return domain

    return make


class Killed(BaseException):
    """Stands for a process that dies between two writes."""


class Mortal(Registry):
    """A registry whose process dies before its n-th write."""

    writes_left = 0

    def _attempt(self, what: str, call: Callable[[], object]) -> object:  # type: ignore[override]
        if self.writes_left == 0:
            raise Killed
        self.writes_left -= 1
        return super()._attempt(what, call)


@pytest.fixture
def killed_at_each_write(registry: Registry) -> Callable[..., int]:
    """`killed_at_each_write(prepare, act, check)`: act dies before its first write, its second, and so on.

    `prepare()` returns what both others get, such as a fresh domain; `check` gets a whole registry after each
    death, and after the first act that lived. Returns how many deaths there were.
    """
    mortal = Mortal(registry.tracking_uri)

    def run(
        prepare: Callable[[], Any],
        act: Callable[[Registry, Any], object],
        check: Callable[[Registry, Any], None],
    ) -> int:
        for writes in range(100):
            thing = prepare()
            mortal.writes_left = writes
            try:
                act(mortal, thing)
            except Killed:
                check(registry, thing)
            else:
                check(registry, thing)
                return writes
        pytest.fail("it never ended")

    return run
