"""A tracking address that is a plain folder, which MLflow does not take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ENDED_SECONDS = 90


@pytest.mark.parametrize("command", ["serve", "worker", "beat", "up", "train", "status"])
def test_every_command_ends_at_once_and_says_what_to_use(
    redraft: Callable[..., CompletedProcess[str]], tmp_path: Path, command: str
) -> None:
    """It is not tried again and again, nothing is started, and no such folder is made."""
    done = redraft(command, timeout=ENDED_SECONDS, MLFLOW_TRACKING_URI="file:./mlruns")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "file:./mlruns" in done.stderr
    assert "sqlite:///" in done.stderr
    assert list(tmp_path.rglob("*")) == []
