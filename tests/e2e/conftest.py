"""The environment of a deployment's processes on a toy pair, for tests that start them by their commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_ops.demo.setup import free_port


@pytest.fixture
def deployment_environment(
    clean_environment: dict[str, str], toy_pair: Callable[[str], tuple[Path, Path]]
) -> dict[str, str]:
    """Of a worker that serves the pair `learn` on a free port and looks for a champion twice a second."""
    target, draft = toy_pair("learn")
    return {
        **clean_environment,
        "REDRAFT_MODELS__TARGET": str(target),
        "REDRAFT_MODELS__DRAFT": str(draft),
        "REDRAFT_SERVING__PORT": str(free_port()),
        "REDRAFT_SERVING__POLL_SECONDS": "0.5",
    }
