"""Fetching a version's files: nothing is written outside the destination, nothing unexpected is followed.

What arrives is still only a folder of bytes. Whether it is an adapter for our base draft is for
`redraft_models.adapter.read_adapter` to say.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from redraft_models.errors import AdapterRejected, AdapterSpoilt
from redraft_models.registry_names import model_name
from redraft_models.registry_transfer import fetch
from redraft_models.registry_versions import VersionInfo, Versions

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

MAX_BYTES = 2 * 1024**3
MAX_FILES = 64
MOST_COPIES = 3
"""Spoilt copies of a version after which its own files count as spoilt."""
_MAX_DEPTH = 4
_MAX_REFERENCES = 4
_MAX_ENTRIES = 256
"""Files and folders that are looked at before a listing counts as endless."""

_TAGGED_FILES = (
    ("weights", "sha256", "adapter_model.safetensors"),
    ("ids of the head", "head_sha256", "head.safetensors"),
)
"""What a file holds, the version tag that says its hash, and its name in `adapter/`."""

_RUN = re.compile(r"runs:/(?P<run>[0-9A-Za-z_-]+)(?:/(?P<path>.+))?")
_VERSION = re.compile(r"models:/(?P<name>[^/@:]+)/(?P<version>\d+)")
_LOGGED = re.compile(r"models:/(?P<id>m-[0-9a-zA-Z]+)")


class _Place(NamedTuple):
    """Artifacts of a version: a root that MLflow resolves, and the folder below it ("" for the root
    itself).
    """

    root: str
    folder: str


class Downloads(Versions):
    """`download` may take as long as the bytes need; a server silent for the transfer limit ends it."""

    def download(self, domain: str, version: int, dst: Path, *, max_bytes: int = MAX_BYTES) -> Path:
        """Files of a version, whole, in a folder of their own directly inside `dst`; returns that folder.

        The folder appears only when everything has arrived, and replaces an earlier one of the same version.
        Raises AdapterRejected if the source is not one of MLflow's own kinds, if a file would leave the
        folder, if there are too many files or bytes; AdapterSpoilt if weights or head differ from the
        version's sha256 tags, or a JSON file is none.
        """
        info = self.version(domain, version)
        with self._translated(f"download version {version} of {model_name(domain)}"):
            place = self._place(info.source)
            dst.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{model_name(domain)}-{version}-", dir=dst))
            try:
                self._fetch(place, partial, max_bytes)
                _check_files(partial, info)
                final = dst / f"{model_name(domain)}-{version}"
                _replace(partial, final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return final

    def _place(self, source: str) -> _Place:
        """Where a version's source leads, following references to other versions a few steps."""
        place = self._follow(source)
        scheme = place.root.partition(":")[0] if re.match(r"[a-z0-9+-]+:", place.root) else "file"
        if self.remote and scheme == "file":
            raise AdapterRejected(
                f"The source {source!r} leads to a folder of this machine, named by the server at "
                f"{self.shown_uri}; "
                "let the server serve its artifacts (mlflow server --artifacts-destination ...)."
            )
        return place

    def _follow(self, source: str) -> _Place:
        for _ in range(_MAX_REFERENCES):
            _check_source(source)
            if found := _RUN.fullmatch(source):
                return _Place(str(self._client.get_run(found["run"]).info.artifact_uri), found["path"] or "")
            if source.startswith("mlflow-artifacts:"):
                return _Place(source, "")
            if found := _LOGGED.fullmatch(source):
                return _Place(str(self._client.get_logged_model(found["id"]).artifact_location), "")
            if not (found := _VERSION.fullmatch(source)):
                break
            source = str(self._client.get_model_version(found["name"], found["version"]).source)
        raise AdapterRejected(
            f"The source {source!r} is not accepted; a version's files come from runs:/, models:/ or "
            "mlflow-artifacts:."
        )

    def _fetch(self, place: _Place, partial: Path, max_bytes: int) -> None:
        repository = self._repository(place)
        _refuse_links(repository, place)
        files = [(_inside(file.path, place), file) for file in files_below(repository, place.folder)]
        _check_amount(len(files), sum(file.size or 0 for _, file in files), max_bytes)
        received = 0
        for relative, file in files:
            target = partial / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            received += fetch(repository, file.path, target, max_bytes - received)

    def _repository(self, place: _Place) -> "ArtifactRepository":
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        return get_artifact_repository(
            place.root, tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri
        )


class _Entry(NamedTuple):
    path: str
    size: int | None
    is_dir: bool


def files_below(repository: "ArtifactRepository", folder: str) -> Iterator[_Entry]:
    """The files of a folder, a few folders deep; raises AdapterRejected where it is deeper or endless."""
    for number, entry in enumerate(_walk(repository, folder, _MAX_DEPTH)):
        if number >= _MAX_ENTRIES:
            raise AdapterRejected(f"The version lists more than {_MAX_ENTRIES} files and folders.")
        if not entry.is_dir:
            yield entry


def _walk(repository: "ArtifactRepository", folder: str, depth: int) -> Iterator[_Entry]:
    for entry in repository.list_artifacts(folder or None):
        yield _Entry(entry.path, entry.file_size, entry.is_dir)
        if not entry.is_dir:
            continue
        if depth == 0:
            raise AdapterRejected(
                f"The folder {entry.path!r} is nested more than {_MAX_DEPTH} deep in the version."
            )
        _check_path(entry.path)
        yield from _walk(repository, entry.path, depth - 1)


def _inside(path: str, place: _Place) -> PurePosixPath:
    """The path relative to the version's folder; the listing comes from the server and is not trusted."""
    _check_path(path)
    relative = PurePosixPath(path)
    if place.folder:
        if not relative.is_relative_to(place.folder):
            raise AdapterRejected(f"The file {path!r} lies outside the version's folder {place.folder!r}.")
        relative = relative.relative_to(place.folder)
    return relative


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or path.startswith("/") or "\\" in path or "\0" in path or ":" in parts[0]:
        raise AdapterRejected(f"The file name {path!r} would leave the version's folder.")


def _check_source(source: str) -> None:
    if ".." in source or "%" in source or "?" in source or "#" in source:
        raise AdapterRejected(f"The source {source!r} is not accepted; it must name a plain path.")


def _check_amount(files: int, size: int, max_bytes: int) -> None:
    if files == 0:
        raise AdapterRejected("The version has no files.")
    if files > MAX_FILES:
        raise AdapterRejected(
            f"The version has {files} files, more than the {MAX_FILES} that an adapter may have."
        )
    if size > max_bytes:
        raise AdapterRejected(f"The version has {size} bytes, more than the {max_bytes} allowed.")


def _refuse_links(repository: "ArtifactRepository", place: _Place) -> None:
    """A local store copies what a link points at, so look before copying."""
    local = getattr(repository, "artifact_dir", None)
    if local is None:
        return
    root = Path(local) / place.folder
    if not root.resolve().is_relative_to(Path(local).resolve()):
        raise AdapterRejected(f"The folder {place.folder!r} of the version leads out of its store by a link.")
    for folder, directories, files in os.walk(root):
        for name in directories + files:
            if (Path(folder) / name).is_symlink():
                raise AdapterRejected(f"The file {name!r} of the version is a symbolic link.")


def _check_files(folder: Path, info: VersionInfo) -> None:
    for what, tag, name in _TAGGED_FILES:
        path, expected = folder / "adapter" / name, info.tags.get(tag)
        if not expected:
            continue
        if not path.is_file():
            raise AdapterRejected(f"The {what} are missing, the version's tag says sha256 {expected}.")
        if (found := _sha256(path)) != expected:
            raise AdapterSpoilt(f"The {what} have the sha256 {found}, the version's tag says {expected}.")
    for path in folder.rglob("*.json"):
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise AdapterSpoilt(f"The file {path.name!r} is not readable as JSON: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _replace(partial: Path, final: Path) -> None:
    if final.exists():
        old = partial.with_name(partial.name + ".old")
        final.rename(old)
        partial.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(final)
