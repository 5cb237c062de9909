"""The quick demo as a person runs it: the loop closes, and nothing that it started is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
KEYS = {
    "acceptance_rate_before",
    "acceptance_rate_after",
    "gain",
    "gain_ci_low",
    "live_acceptance_rate_before",
    "live_acceptance_rate_after",
    "mean_acceptance_length_before",
    "mean_acceptance_length_after",
    "tokens_per_second_off",
    "tokens_per_second_before",
    "tokens_per_second_after",
    "longest_pause_seconds",
    "failed_requests",
    "greedy_equal",
    "seconds",
}


def left_over(folder: Path) -> list[str]:
    """Command lines of processes that know of the demo's folder, by argument, working directory or
    environment.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (process / "environ").read_bytes().decode(errors="replace")
            where = os.readlink(process / "cwd")
        except OSError:
            continue
        if command and any(str(folder) in text for text in (command, environment, where)):
            found.append(command)
    return found


@pytest.fixture
def demo(clean_environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start `redraft demo --quick --json` into `tmp_path/demo`."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "redraft_ops",
            "demo",
            "--quick",
            "--json",
            "--out",
            str(tmp_path / "demo"),
        ]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=clean_environment, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_loop_closes(demo: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    process = demo()
    output, errors = process.communicate(timeout=380)
    assert process.returncode == 0, errors
    found = json.loads(output)
    assert set(found) == KEYS
    assert found["acceptance_rate_after"] - found["acceptance_rate_before"] == pytest.approx(
        found["gain"], abs=1e-6
    )
    assert found["gain_ci_low"] > 0.3
    assert found["live_acceptance_rate_after"] > found["live_acceptance_rate_before"] + 0.3
    assert found["mean_acceptance_length_after"] > found["mean_acceptance_length_before"]
    assert found["failed_requests"] == 0
    assert found["greedy_equal"] is True
    assert found["longest_pause_seconds"] > 0, "streams ran while the draft was swapped"
    assert min(found[f"tokens_per_second_{name}"] for name in ("off", "before", "after")) > 0
    folder = tmp_path / "demo"
    assert "mlflow server" in errors
    assert (folder / "report.png").stat().st_size > 10_000
    assert "| live acceptance" in (folder / "report.md").read_text()
    assert left_over(folder) == []


@pytest.mark.parametrize(
    ("number", "phase", "code"),
    [
        (signal.SIGINT, "training round 1", 130),
        (signal.SIGTERM, "traffic, base draft", 143),
        (signal.SIGINT, "start Valkey", 130),
    ],
)
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_nothing_is_left_when_it_is_interrupted(
    demo: Callable[[], subprocess.Popen[str]], tmp_path: Path, number: signal.Signals, phase: str, code: int
) -> None:
    process = demo()
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(phase):
            break
    time.sleep(2.0)
    assert left_over(tmp_path / "demo")
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert output == ""
    assert left_over(tmp_path / "demo") == []


def test_a_folder_of_someone_elses_is_not_emptied(clean_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    command = [sys.executable, "-m", "redraft_ops", "demo", "--quick", "--out", str(tmp_path / "mine")]
    done = subprocess.run(command, env=clean_environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
