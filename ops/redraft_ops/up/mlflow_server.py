"""`python -m redraft_ops.up.mlflow_server DATABASE ARTIFACTS PORT`: MLflow's server over a local registry.

Other processes read and write the same database and artifact folder, so the server hands out plain paths
rather than its own artifact addresses. MLflow makes tables at its first start; that is done here, under the
registry's own lock, because two processes at it would collide.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENVIRONMENT = {
    # Background jobs of language-model judges: several processes that nobody here uses.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def server_command(database: Path, artifacts: Path, port: int) -> list[str]:
    """The command of the server itself: loopback only, one process for requests."""
    return [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        f"--backend-store-uri=sqlite:///{database}",
        f"--default-artifact-root={artifacts}",
        "--no-serve-artifacts",
        "--host=127.0.0.1",
        f"--port={port}",
        "--workers=1",
    ]


def main(database: Path, artifacts: Path, port: int) -> None:
    """Make the tables, then become the server."""
    from redraft_models.registry import Registry

    Registry(f"sqlite:///{database}", artifact_root=artifacts)
    command = server_command(database, artifacts, port)
    os.execve(command[0], command, {**os.environ, **ENVIRONMENT})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
