"""What a test does with a deployment of real processes: asks its worker, and runs commands beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft_ops.demo.client import Client

MODEL = "toy"
WORDS = [f"{letter}{number}" for letter in "abcdefgh" for number in range(8)]
"""Of the pair `learn`."""
COMMAND_SECONDS = 200


def client_of(environment: Mapping[str, str]) -> Client:
    """A client of the worker that is served by this environment."""
    return Client(f"http://127.0.0.1:{environment['REDRAFT_SERVING__PORT']}", MODEL, "default", chat=False)


def call(environment: Mapping[str, str], folder: Path, *arguments: str) -> Any:
    """What `redraft ARGUMENTS --json` tells."""
    command = [sys.executable, "-m", "redraft_ops", *arguments, "--json"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
