"""The loop by its commands, each a process of its own that finds the same embedded servers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest
from redraft_ops.demo.client import Client
from redraft_ops.demo.prompts import word_prompts
from redraft_ops.demo.swap import served_version
from redraft_ops.demo.traffic import run_all
from redraft_ops.glance.rows import KEYS

from .deployed import MODEL, WORDS, call, client_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
TRAIN_KEYS = {
    "decision",
    "reason",
    "version",
    "acceptance_rate",
    "champion_acceptance_rate",
    "gain",
    "gain_ci_low",
    "heldout_requests",
    "heldout_tokens",
}


@pytest.fixture
def environment(deployment_environment: dict[str, str]) -> dict[str, str]:
    return {
        **deployment_environment,
        "REDRAFT_TRAINER__MAX_STEPS": "30",
        # Other tests run beside this one: the idle class would wait for their end.
        "REDRAFT_TRAINER__PRIORITY": "low",
        "REDRAFT_TRAINER__LEARNING_RATE": "0.01",
        "REDRAFT_TRAINER__RANK": "16",
        "REDRAFT_TRAINER__LORA_ALPHA": "16",
        "REDRAFT_GATE__MIN_HELDOUT_REQUESTS": "10",
        "REDRAFT_GATE__MIN_HELDOUT_TOKENS": "200",
        "REDRAFT_QUEUE__MIN_NEW_TOKENS": "1000",
        # The gate's word is the last one here; canaries have tests of their own.
        "REDRAFT_SERVING__CANARY__SHARE": "0",
    }


@pytest.fixture
def client(environment: dict[str, str], tmp_path: Path) -> Iterator[Client]:
    """A serving worker on the toy pair, by `redraft serve`."""
    command = [sys.executable, "-m", "redraft_ops", "serve", "--served-model-name", MODEL]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        client = client_of(environment)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.get("/ready")
                break
            except (OSError, HTTPException):
                time.sleep(0.2)
        yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "serve.log").read_text()


@contextmanager
def worker(environment: dict[str, str], folder: Path) -> Iterator[None]:
    """A training worker, by `redraft worker`."""
    command = [sys.executable, "-m", "redraft_ops", "worker"]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def await_version(client: Client, version: object) -> None:
    deadline = time.monotonic() + 20
    while served_version(client) != version and time.monotonic() < deadline:
        time.sleep(0.1)
    assert served_version(client) == version


def test_train_status_measure_and_rollback(
    client: Client, environment: dict[str, str], tmp_path: Path
) -> None:
    (fresh,) = call(environment, tmp_path, "status")
    assert (fresh["version"], fresh["acceptance_rate"], fresh["tested_tokens"]) == ("base", None, 0)

    prompts = word_prompts(1, WORDS, 6, 120)
    assert not [a.error for a in run_all(client, prompts, 8, lambda _: None, max_tokens=24) if a.error]
    time.sleep(1.0)

    (before,) = call(environment, tmp_path, "status")
    assert before.keys() == KEYS.keys()
    assert (before["version"], before["stream_length"], before["unseen"], before["lost"]) == (
        "base",
        120,
        120,
        0,
    )
    assert 0.1 < before["acceptance_rate"] < 0.35

    trained = call(environment, tmp_path, "train", "--domain", "default")
    assert set(trained) == TRAIN_KEYS
    assert (trained["decision"], trained["version"]) == ("promoted", 1)
    assert trained["acceptance_rate"] > trained["champion_acceptance_rate"] + 0.3
    await_version(client, 1)

    again = call(environment, tmp_path, "train")
    assert again["decision"] == "skipped"
    assert "min_new_tokens" in again["reason"]

    base, champion = call(environment, tmp_path, "measure")
    assert (base["version"], champion["version"]) == ("base", 1)
    assert champion["acceptance_rate"] == pytest.approx(trained["acceptance_rate"], abs=0.01)
    assert champion["gain_ci_low"] > 0.3

    (after,) = call(environment, tmp_path, "status")
    assert after["version"] == 1
    assert (after["unseen"], after["lost"]) == (0, 0)
    assert after["last_round"]["decision"] == "promoted"

    assert call(environment, tmp_path, "rollback") == {"domain": "default", "from": 1, "to": None}
    await_version(client, "base")

    assert call(environment, tmp_path, "promote", "1") == {"domain": "default", "from": None, "to": 1}
    await_version(client, 1)
    with worker(environment, tmp_path):
        asked = call(environment, tmp_path, "train", "--now", "--force")
    assert set(asked) == {"round_id", *TRAIN_KEYS}
    assert asked["decision"] == "skipped", asked
    (last,) = call(environment, tmp_path, "status")
    assert (last["schedule"]["last_end"], last["champion"]) == ("skipped", 1)
