"""One artifact's bytes into a file, never more than the caller allows, whatever the listing said of its size.

MLflow's own download writes what the server sends until it ends, and a server that lies, or has gone wrong,
fills the disk.
"""

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

from redraft_models.errors import AdapterRejected

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

_CHUNK_BYTES = 1 << 20


def fetch(repository: "ArtifactRepository", path: str, target: Path, most: int) -> int:
    """Download `path` of the repository to `target`; returns its size in bytes.

    Raises AdapterRejected as soon as more than `most` bytes have come from a server. Other stores (a local
    folder, a cloud's) measure their files themselves and are believed until the file is there.
    """
    from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

    if isinstance(repository, HttpArtifactRepository):
        return _fetch_http(repository, path, target, most)
    repository._download_file(path, str(target))
    size = target.stat().st_size
    if size > most:
        raise AdapterRejected(_too_much(path, most))
    return size


def _fetch_http(repository: "ArtifactRepository", path: str, target: Path, most: int) -> int:
    from mlflow.utils.rest_utils import augmented_raise_for_status, http_request

    received = 0
    endpoint = posixpath.join("/", path)
    with http_request(repository._host_creds, endpoint, "GET", stream=True) as response:
        augmented_raise_for_status(response)
        with target.open("wb") as file:
            for chunk in response.iter_content(_CHUNK_BYTES):
                received += len(chunk)
                if received > most:
                    raise AdapterRejected(_too_much(path, most))
                file.write(chunk)
    return received


def _too_much(path: str, most: int) -> str:
    return (
        f"The file {path!r} goes on after the {most} bytes that were left for it; it is not the one listed."
    )
