"""Deleting old versions with their files.

A version is tagged `pruning`, then its files go, then the version. Whoever dies in between leaves a version
that says so and can't serve any more, and the next prune finishes it. The run keeps its metrics and pictures.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from redraft_models.errors import AdapterRejected, RegistryError
from redraft_models.registry_connection import is_absent
from redraft_models.registry_download import Downloads, files_below
from redraft_models.registry_moves import Moves
from redraft_models.registry_names import PRUNING, VERSION_ARTIFACT, model_name
from redraft_models.registry_versions import VersionInfo

logger = logging.getLogger(__name__)

_FILES_TAG = "files"
"""Tag of a run whose version was pruned."""


@dataclass(frozen=True)
class Pruned:
    """What a prune deleted: version numbers, oldest first, and the bytes of their files as far as the store
    told them.
    """

    versions: tuple[int, ...] = ()
    bytes_freed: int = 0


class Pruning(Moves, Downloads):
    """Deleting versions; safe to repeat at any point."""

    def prune(self, domain: str, keep: int) -> Pruned:
        """Delete all versions but the newest `keep`, and return what went.

        Always kept: the newest one, every version with an alias, pending ones, a running canary, the cursor,
        and what was champion before the champion and before `previous`, so that two rollbacks lead to
        versions. Files that a kept version shares stay.
        """
        versions = self.versions(domain)
        kept = self._kept(domain, versions, keep)
        shared = {info.source for info in versions if info.version in kept}
        gone: list[int] = []
        freed = 0
        for info in reversed(versions):
            if info.version not in kept:
                size = self._prune_one(info, with_files=info.source not in shared)
                if size is not None:
                    gone.append(info.version)
                    freed += size
        if gone:
            self._describe(domain)
        return Pruned(tuple(gone), freed)

    def prunable(self, domain: str, keep: int) -> list[int]:
        """What `prune` would delete, oldest first."""
        versions = self.versions(domain)
        kept = self._kept(domain, versions, keep)
        return [info.version for info in reversed(versions) if info.version not in kept]

    def _kept(self, domain: str, versions: Sequence[VersionInfo], keep: int) -> set[int]:
        by_number = {info.version: info for info in versions}
        kept = self._all_aliased(domain)
        for number in tuple(kept):
            before = self._before(domain, by_number.get(number))
            kept |= {before} if before is not None else set()
        kept |= {info.version for info in self.pending(domain)}
        kept |= {info.version for info in self._running(domain)}
        cursor = self.cursor(domain)
        kept |= {cursor.version} if cursor is not None else set()
        newest = {info.version for info in versions[: max(1, keep)] if PRUNING not in info.tags}
        return kept | newest

    def _all_aliased(self, domain: str) -> set[int]:
        """Versions with any alias, ours or one that somebody gave in the UI."""
        model = self._read_or_none(
            "read a model", lambda: self._client.get_registered_model(model_name(domain))
        )
        return {int(version) for version in model.aliases.values()} if model is not None else set()

    def _is_aliased(self, domain: str, version: int) -> bool:
        found = self._read_or_none(
            "find a version", lambda: self._client.get_model_version(model_name(domain), str(version))
        )
        return found is not None and bool(found.aliases)

    def _prune_one(self, info: VersionInfo, with_files: bool) -> int | None:
        """Bytes freed, or None for a version that has got an alias meanwhile."""
        domain, version = info.domain, info.version
        self._tag_if_there(domain, version, {PRUNING: "true"})
        if self._is_aliased(domain, version):
            self._untag(VersionInfo(domain, version, "", "", 0, "", {PRUNING: "true"}), [PRUNING])
            return None
        freed = self._delete_files(info) if with_files else 0
        self._write("delete a version", partial(self._delete_version, domain, version))
        if info.run_id:
            self._best_effort(f"the run of version {version}", partial(self._mark_run, info.run_id))
        logger.info("version %d of domain %s is deleted, with %d bytes of files", version, domain, freed)
        return freed

    def _delete_files(self, info: VersionInfo) -> int:
        """Delete what a run holds of its own version; a source of any other kind is not ours to delete."""
        if info.source != f"runs:/{info.run_id}/{VERSION_ARTIFACT}":
            return 0
        try:
            return self._write("delete the files of a version", partial(self._remove, info))
        except AdapterRejected as error:
            logger.warning("the files of version %d stay: %s", info.version, error)
        return 0

    def _remove(self, info: VersionInfo) -> int:
        try:
            repository = self._repository(self._place(info.source))
            size = sum(file.size or 0 for file in files_below(repository, VERSION_ARTIFACT))
            repository.delete_artifacts(VERSION_ARTIFACT)
        except (NotImplementedError, FileNotFoundError) as error:
            logger.warning("the files of version %d can't be deleted: %s", info.version, error)
            return 0
        except Exception as error:
            if is_absent(error) or re.search("not implemented", str(error), re.IGNORECASE):
                logger.warning("the files of version %d can't be deleted: %s", info.version, error)
                return 0
            raise
        return size

    def _mark_run(self, run_id: str) -> None:
        self._attempt("tag a run", lambda: self._client.set_tag(run_id, _FILES_TAG, "pruned"))

    def _delete_version(self, domain: str, version: int) -> None:
        try:
            self._client.delete_model_version(model_name(domain), str(version))
        except Exception as error:
            if not is_absent(error):
                raise

    def _discard(self, versions: Iterable[VersionInfo]) -> None:
        """Delete versions that should never have been, with their files."""
        for info in versions:
            try:
                self._prune_one(info, with_files=True)
            except RegistryError as error:
                logger.warning("version %d of %s is left over: %s", info.version, info.domain, error)
