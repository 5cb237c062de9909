"""MLflow behind a proxy that spoils files on their way."""

from __future__ import annotations

from pathlib import Path

from redraft_models.registry import Registry

from .proxy import Proxy
from .servers import Mlflow

PATIENT = 60.0
"""Read limit: nothing here is about a slow server."""
WEIGHTS = "adapter_model.safetensors"


class Place:
    """MLflow, reached by workers through the proxy and by the test itself directly."""

    def __init__(self, folder: Path) -> None:
        self.mlflow = Mlflow(folder, "mlflow")
        self.mlflow.start()
        self.proxy = Proxy(self.mlflow.port)
        self.registry = Registry(f"http://127.0.0.1:{self.mlflow.port}", timeout_seconds=PATIENT)
        self.workers = Registry(f"http://127.0.0.1:{self.proxy.port}", timeout_seconds=PATIENT)

    def spoil(self, name: str, most: float) -> None:
        """Spoil so many copies of the files of this name, from now on."""
        self.proxy.heal()
        self.proxy.seen.clear()
        self.proxy.spoil, self.proxy.spoil_most = name, most

    def copies(self, name: str = WEIGHTS) -> int:
        """How many copies of files of this name were asked for since."""
        return sum(name in request for request in self.proxy.seen)

    def close(self) -> None:
        """Stop both."""
        self.proxy.close()
        self.mlflow.stop()
