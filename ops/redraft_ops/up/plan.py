"""Which parts a deployment on this machine has, from the settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from redraft_ops.settings import Settings, without_password
from redraft_ops.stack import tracking
from redraft_ops.up.mlflow_server import ENVIRONMENT
from redraft_ops.up.probes import (
    Probe,
    free_at_or_after,
    loopback,
    registry_answers,
    serving_answers,
    shows_life,
    valkey_answers,
)
from redraft_ops.up.service import Service
from redraft_ops.valkey import free_port, keeper_command

PARTS = ("serve", "worker", "beat", "mlflow", "valkey")
"""In the order of their end: requests are finished first, what the others stand on goes last."""
DRAIN_MARGIN_SECONDS = 15.0
WORKER_GRACE_SECONDS = 40.0


@dataclass(frozen=True)
class Plan:
    """Addresses of the deployment, fixed for its life, so that what is restarted is found again."""

    settings: Settings
    valkey_port: int | None
    """None with a Redis of the user's own."""
    mlflow_port: int | None
    """None with an MLflow of the user's own."""
    serving_port: int
    left_out: frozenset[str] = frozenset()

    @property
    def redis_url(self) -> str:
        """The Redis of every part."""
        given = self.settings.redis_url
        return given.get_secret_value() if given else f"redis://127.0.0.1:{self.valkey_port}"

    @property
    def api(self) -> str:
        """Address of the serving worker, as seen from this machine."""
        host = loopback(self.settings.serving.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.serving_port}"

    @property
    def mlflow(self) -> str:
        """Address of MLflow's pages, or the user's own tracking URI."""
        if self.mlflow_port is None:
            return self.settings.mlflow_tracking_uri or "not started"
        return f"http://127.0.0.1:{self.mlflow_port}"

    @property
    def valkey_folder(self) -> Path:
        """Data of the embedded Valkey."""
        return self.settings.data_dir / "valkey"

    @property
    def logs(self) -> Path:
        """Log files of the parts."""
        return self.settings.data_dir / "logs"

    def environment(self) -> dict[str, str]:
        """What makes every part use the same stack. The rest of the settings they resolve as we do."""
        uri, _ = tracking(self.settings)
        return {
            "REDRAFT_REDIS_URL": self.redis_url,
            "MLFLOW_TRACKING_URI": uri,
            "REDRAFT_SERVING__PORT": str(self.serving_port),
        }

    def services(self) -> list[Service]:
        """The parts in the order of their end."""
        return [one for one in self._services() if one.name not in self.left_out]

    def _services(self) -> Iterator[Service]:
        environment, queue = self.environment(), self.settings.queue
        drain = self.settings.serving.drain_seconds + DRAIN_MARGIN_SECONDS
        yield _redraft("serve", serving_answers(self.api), environment, drain)
        yield _redraft("worker", shows_life(self.redis_url, "trainer"), environment, WORKER_GRACE_SECONDS)
        yield _redraft("beat", shows_life(self.redis_url, "beat"), environment, queue.heartbeat_ttl_seconds)
        if self.mlflow_port is not None:
            yield self._mlflow(self.mlflow_port)
        if self.valkey_port is not None:
            yield self._valkey(self.valkey_port)

    def _mlflow(self, port: int) -> Service:
        uri, artifacts = tracking(self.settings)
        database = uri.removeprefix("sqlite:///")
        module = [sys.executable, "-m", "redraft_ops.up.mlflow_server", database, str(artifacts), str(port)]
        probe = registry_answers(f"http://127.0.0.1:{port}")
        return Service("mlflow", module, probe, ENVIRONMENT, whole_group=True)

    def _valkey(self, port: int) -> Service:
        command = keeper_command(self.valkey_folder, port)
        return Service("valkey", command, valkey_answers(port), first=True)

    def places(self) -> list[str]:
        """Where everything is, a line each."""
        taken = self.mlflow_port is not None and self.mlflow_port != self.settings.up.mlflow_port
        why = f" (port {self.settings.up.mlflow_port} is taken)" if taken else ""
        return [
            f"API        {self.api}/v1",
            f"dashboard  {self.api}/",
            f"MLflow     {without_password(self.mlflow)}{why}",
            f"Redis      {without_password(self.redis_url)}",
            f"logs       {self.logs}",
        ]


def make_plan(settings: Settings, left_out: frozenset[str] = frozenset()) -> Plan:
    """Choose the ports that are not given. Raises OSError where none is free."""
    wanted = settings.up.mlflow_port
    embedded = settings.mlflow_tracking_uri is None and "mlflow" not in left_out
    return Plan(
        settings=settings,
        valkey_port=free_port() if settings.redis_url is None else None,
        mlflow_port=(free_at_or_after(wanted) if wanted else free_port()) if embedded else None,
        serving_port=settings.serving.port or free_port(),
        left_out=left_out,
    )


def _redraft(name: str, probe: Probe, environment: Mapping[str, str], grace: float) -> Service:
    command = [sys.executable, "-m", "redraft_ops", name]
    return Service(name, command, probe, environment, grace_seconds=grace)
