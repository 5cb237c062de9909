"""The command line as a process: exit codes, streams, and no heavy import before a command runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Redraft = Callable[..., subprocess.CompletedProcess[str]]
HEAVY = ("torch", "transformers", "mlflow", "celery", "pydantic", "redis", "matplotlib", "numpy")


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, redraft_ops.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_heavy_import_would_be_seen() -> None:
    code = f"import sys, redraft_ops.cli, numpy; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['numpy']"


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "up",
        "serve",
        "worker",
        "beat",
        "train",
        "measure",
        "status",
        "promote",
        "rollback",
        "forget",
        "prune",
        "init-draft",
        "bench",
        "doctor",
        "config",
    ],
)
def test_every_command_has_help(redraft: Redraft, command: str) -> None:
    done = redraft(command, "--help")
    assert done.returncode == 0
    assert command in done.stdout


def test_config_prints_the_resolved_settings(redraft: Redraft) -> None:
    done = redraft("config", "--json", REDRAFT_GATE__MIN_GAIN="0.25")
    document = json.loads(done.stdout)
    assert document["gate"]["min_gain"] == 0.25
    assert document["serving"]["num_speculative_tokens"] == "auto"
    assert {"models", "serving", "queue", "trainer", "gate", "redis_url", "data_dir"} <= set(document)


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("serve", "--dtype", "float8"), {}),
        (("status",), {"REDRAFT_GATE__MIN_GAIN": "5"}),
        (("train",), {"MLFLOW_TRACKING_URI": "file:./mlruns"}),
        (("demo", "--no-such-option"), {}),
    ],
)
def test_a_wrong_setting_or_argument_is_exit_2(
    redraft: Redraft, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    done = redraft(*arguments, **environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_a_draft_whose_end_token_is_elsewhere_ends_the_start(
    redraft: Redraft, redis_url: str, tmp_path: Path
) -> None:
    from redraft_models.toy import write_toy_pair

    target, draft = write_toy_pair(tmp_path, "table")
    file = draft / "tokenizer.json"
    text = file.read_text()
    for old, new in (("<eos>", "<moved>"), ("<pad>", "<eos>"), ("<moved>", "<pad>")):
        text = text.replace(f'"{old}"', f'"{new}"')
    file.write_text(text)
    done = redraft("serve", "--target", str(target), "--draft", str(draft), REDRAFT_REDIS_URL=redis_url)
    assert done.returncode == 2
    assert "differ at token id 1: '<eos>' in the target, '<pad>' in the draft" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("status",), ("train",), ("measure",), ("worker",), ("beat",)])
@pytest.mark.integration
def test_no_redis_is_exit_1_with_one_sentence_within_30_seconds(
    redraft: Redraft, command: tuple[str, ...]
) -> None:
    started = time.monotonic()
    done = redraft(*command, REDRAFT_REDIS_URL="redis://:hunter2@127.0.0.1:9")
    assert done.returncode == 1
    assert time.monotonic() - started < 30
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("redraft: Redis at 127.0.0.1:9 does not answer")
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("command", [("status",), ("rollback",)])
@pytest.mark.integration
def test_no_mlflow_is_exit_1_with_one_sentence_within_30_seconds(
    redraft: Redraft, redis_url: str, command: tuple[str, ...]
) -> None:
    started = time.monotonic()
    done = redraft(*command, REDRAFT_REDIS_URL=redis_url, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - started < 30
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_status_without_a_serving_worker_shows_the_registry(
    redraft: Redraft, redis_url: str, tracking_uri: str
) -> None:
    settings = {
        "REDRAFT_REDIS_URL": redis_url,
        "MLFLOW_TRACKING_URI": tracking_uri,
        "REDRAFT_SERVING__PORT": "9",
    }
    done = redraft("status", "--json", **settings)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["domain"] == "default"
    assert row["version"] == "base"
    assert row["acceptance_rate"] is None
    assert row["last_round"] is None
    assert "no serving worker answers" in done.stderr


@pytest.mark.integration
def test_a_given_serving_worker_that_is_away_is_exit_1(
    redraft: Redraft, redis_url: str, tracking_uri: str
) -> None:
    settings = {"REDRAFT_REDIS_URL": redis_url, "MLFLOW_TRACKING_URI": tracking_uri}
    done = redraft("status", "--url", "http://127.0.0.1:9", **settings)
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr


@pytest.mark.integration
def test_rolling_back_a_domain_without_versions_says_so(
    redraft: Redraft, redis_url: str, tracking_uri: str
) -> None:
    done = redraft("rollback", REDRAFT_REDIS_URL=redis_url, MLFLOW_TRACKING_URI=tracking_uri)
    assert done.returncode == 1
    assert "nothing to roll back" in done.stderr
