"""What the loop stands on: Redis and MLflow, the user's own or embedded ones.

With no `redis_url` a real Valkey server runs on loopback, shared by every redraft process with the same data
directory and gone with the last of them. With no `mlflow_tracking_uri`, sqlite and a local artifact folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redraft_ops.errors import ServerUnreachable
from redraft_ops.settings import Settings

if TYPE_CHECKING:
    from redraft_models.registry import Registry
    from redraft_queue.stream import SampleStream


@dataclass(frozen=True)
class Stack:
    """Addresses of one running stack."""

    redis_url: str
    tracking_uri: str
    artifact_root: Path | None
    """Where a local MLflow keeps artifacts; None where a server decides."""
    settings: Settings

    def registry(self) -> Registry:
        """A client of the registry, with short timeouts."""
        from redraft_models.registry import Registry

        return Registry(self.tracking_uri, artifact_root=self.artifact_root)

    def stream(self) -> SampleStream:
        """A client of the sample stream. Raises StreamUnavailable when it is used and Redis is away."""
        from redraft_queue.stream import SampleStream, connect

        return SampleStream(connect(self.redis_url, self.settings.queue), self.settings.queue)

    def require_redis(self) -> None:
        """Raise ServerUnreachable, within seconds, if Redis does not answer."""
        from redraft_queue.errors import StreamUnavailable

        try:
            self.stream().domains()
        except StreamUnavailable as error:
            # Neither `user:password@` nor `?password=` belongs into a message.
            where = self.redis_url.rpartition("@")[2].partition("?")[0].removeprefix("redis://")
            raise ServerUnreachable(
                f"Redis at {where} does not answer ({error}); start it or set redis_url"
            ) from error

    def announce(self, domain: str, version: int | None) -> None:
        """Tell the serving workers that a champion has moved. Without Redis they find out by polling."""
        from redraft_queue.errors import StreamUnavailable
        from redraft_queue.events import ChampionMoved, publish_champion
        from redraft_queue.stream import connect

        try:
            publish_champion(connect(self.redis_url, self.settings.queue), ChampionMoved(domain, version))
        except StreamUnavailable:
            return

    def environment(self) -> dict[str, str]:
        """Variables that make another redraft process use this same stack."""
        return {
            "REDRAFT_REDIS_URL": self.redis_url,
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "REDRAFT_DATA_DIR": str(self.settings.data_dir),
            "REDRAFT_CACHE_DIR": str(self.settings.cache_dir),
        }


def tracking(settings: Settings) -> tuple[str, Path | None]:
    """The tracking URI and, for a local one, the artifact folder (both created)."""
    folder = settings.data_dir / "mlflow"
    uri = settings.mlflow_tracking_uri or f"sqlite:///{folder / 'mlflow.db'}"
    if not uri.startswith("sqlite:"):
        return uri, None
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    return uri, folder / "artifacts"


@contextmanager
def open_stack(settings: Settings) -> Iterator[Stack]:
    """The stack for the time of a `with` block. An embedded Valkey is joined or started, and left at the end.

    Raises EmbeddedValkeyError where the server cannot be started.
    """
    uri, artifacts = tracking(settings)
    if settings.redis_url is not None:
        yield Stack(settings.redis_url.get_secret_value(), uri, artifacts, settings)
        return
    from redraft_ops.valkey import embedded_valkey

    with embedded_valkey(settings.data_dir / "valkey") as url:
        yield Stack(url, uri, artifacts, settings)
