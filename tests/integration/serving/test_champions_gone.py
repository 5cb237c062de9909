"""Champions that vanish, that nobody may load, and that come back: what serves goes on serving."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_models.registry import Registry
from redraft_serving.swap import SwapWatcher

from .test_loop import held, register, serving, wait_for

pytestmark = pytest.mark.integration

Worker = Any
Start = Callable[..., Worker]
MODEL = "redraft-default"


@pytest.fixture
def worker(start: Start, registry: Registry, tmp_path: Path) -> Worker:
    """A worker that serves version 1."""
    worker = start("random", config={"tracking_uri": registry.tracking_uri})
    registry.promote("default", register(registry, worker, tmp_path, 1))
    wait_for(lambda: serving(worker)["version"] == 1)
    return worker


def refused(registry: Registry, worker: Worker, version: int, checksum: str) -> None:
    """The version is tagged with the reason, and version 1 goes on with the same weights."""
    registry._client.set_registered_model_alias(MODEL, "champion", str(version))
    wait_for(lambda: registry.version("default", version).validation_status == "rejected")
    assert "refused" in registry.version("default", version).tags["decision_reason"]
    assert (serving(worker)["version"], serving(worker)["checksum"]) == (1, checksum)
    worker.complete("w1 w2", max_tokens=8)


def test_a_deleted_champion_goes_on_serving_with_one_warning(
    worker: Worker, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow takes the alias away with the version, and nobody has asked for the base draft."""
    with caplog.at_level(logging.WARNING):
        registry._client.delete_model_version(MODEL, "1")
        wait_for(lambda: "the champion alias is gone; version 1 goes on" in caplog.text)
        for _ in range(20):
            body = worker.complete("w1 w2", max_tokens=8)
            assert body["metrics"]["speculative_decoding"]["draft_version"] == 1
    assert caplog.text.count("the champion alias is gone") == 1
    assert serving(worker)["version"] == 1


@pytest.mark.parametrize("source", ["file:///etc", "/etc", "runs:/{run}/../../.."])
def test_a_champion_whose_source_leads_elsewhere_is_refused_and_tagged(
    worker: Worker, registry: Registry, source: str
) -> None:
    """The store has been made to take it, past the checks of MLflow's server."""
    run_id = registry.version("default", 1).run_id
    forced = registry._client.create_model_version(MODEL, source.format(run=run_id), run_id)
    refused(registry, worker, int(forced.version), serving(worker)["checksum"])


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    "name", ["adapter/adapter_model.safetensors", "adapter/adapter_model.bin", "python_model.pkl"]
)
def test_a_champion_with_a_pickle_runs_nothing(
    worker: Worker, registry: Registry, tmp_path: Path, name: str
) -> None:
    """Its hashes agree, so that only what it is can be held against it."""
    marker = tmp_path / "ran"
    content = pickle.dumps(Touches(marker))
    files = Path(shutil.copytree(registry.download("default", 1, tmp_path / "cache"), tmp_path / "files"))
    (files / name).write_bytes(content)
    sha = hashlib.sha256((files / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()
    provenance = json.loads((files / "provenance.json").read_text())
    (files / "provenance.json").write_text(json.dumps({**provenance, "sha256": sha}))
    run_id = registry.start_run("default", "by hand", {})
    registry.log_artifacts(run_id, files, "version")
    version = registry.register("default", run_id, {"sha256": sha})
    refused(registry, worker, version, serving(worker)["checksum"])
    assert not marker.exists()
    pickle.loads(content)  # whoever loads it runs it
    assert marker.exists()


@pytest.mark.usefixtures("hasty_store")
def test_a_registry_that_is_back_is_followed_at_the_next_look(
    start: Start, registry: Registry, tmp_path: Path
) -> None:
    """No look that failed makes later ones rarer: the first one that is answered brings the champion."""
    worker = start("random")
    registry.promote("default", register(registry, worker, tmp_path, 1))
    draft = worker.engine.pair.draft
    patient = Registry(registry.tracking_uri, timeout_seconds=5.0)
    arguments = (draft.module, draft.fingerprint, lambda: ["default"], 1.0, tmp_path / "adapters")
    watcher = SwapWatcher(patient, worker.engine, *arguments)
    with held(registry.tracking_uri):
        for _ in range(5):
            watcher.look()
        assert watcher.serving == {}
    watcher.look()
    assert watcher.serving == {"default": 1}
