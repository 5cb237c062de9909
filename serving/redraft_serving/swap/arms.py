"""Versions into the engine: fetched, checked, swapped in and read back, on any arm of a domain.

A version serves only if it is READY, its files pass every check of `read_adapter`, and the engine reads the
new weights back. A copy that was spoilt on its way says nothing about its version: it is thrown away, and the
next pass fetches another.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redraft_models.adapter import Adapter, read_adapter
from redraft_models.apart import apart
from redraft_models.errors import AdapterSpoilt, RegistryError
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_download import MOST_COPIES

from redraft_serving.engine.interface import CHAMPION, Arm, Engine
from redraft_serving.swap.served import BASE, SWAPPED, Served

logger = logging.getLogger(__name__)

_SWAP_TIMEOUT_SECONDS = 120.0
ReadFiles = Callable[[Path, int], Adapter]
"""The checked adapter in a folder that claims to hold this version. Raises AdapterRejected."""


class Arms:
    """Swaps versions in and takes arms away, and keeps `served` true."""

    def __init__(
        self, registry: Registry, engine: Engine, read: ReadFiles, work_dir: Path, served: Served
    ) -> None:
        self._registry = registry
        self._engine = engine
        self._read = read
        self._work_dir = work_dir
        self.served = served
        self._spoilt: Counter[tuple[str, int]] = Counter()
        """(domain that is served, version) -> spoilt copies, one a pass, since the last whole one."""

    def take(self, domain: str, arm: Arm, info: VersionInfo) -> None:
        """Serve a version, maybe another domain's. Raises AdapterRejected for one that is not whole, and
        RegistryError for a spoilt copy that may be followed by a whole one.
        """
        self._swap(domain, arm, self._whole(domain, info), info.version)

    def take_base(self, domain: str, arm: Arm) -> None:
        """Serve the base draft."""
        self._swap(domain, arm, None, BASE)

    def retire(self, domain: str, arm: Arm) -> None:
        """Take an arm away, if it is there; its requests in flight go on with the champion."""
        if self.served.version(domain, arm) is not None:
            self._engine.retire(domain, arm)
            self.served.remove(domain, arm)
            logger.info("domain %s has no %s any more", domain, arm)

    def _whole(self, domain: str, info: VersionInfo) -> Adapter:
        about = domain, info.version
        try:
            adapter = self._fetch(info)
        except AdapterSpoilt as error:
            self._spoilt[about] += 1
            copies = self._spoilt[about]
            if copies >= MOST_COPIES:
                raise
            raise RegistryError(
                f"version {info.version} arrived spoilt, {copies} of {MOST_COPIES} copies: {error}"
            ) from error
        del self._spoilt[about]
        return adapter

    def _fetch(self, info: VersionInfo) -> Adapter:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="adapter-", dir=self._work_dir) as folder:
            files = self._registry.download(info.domain, info.version, Path(folder))
            return apart(lambda: self._read(files, info.version))

    def _swap(self, domain: str, arm: Arm, adapter: Adapter | None, version: int | str) -> None:
        result = self._engine.swap(domain, adapter, version, arm).result(_SWAP_TIMEOUT_SECONDS)
        self.served.put(domain, arm, version)
        if arm == CHAMPION:
            self.served.content(domain)
            self.served.count(domain, SWAPPED)
        logger.info(
            "domain %s serves draft %s as %s (weights %s, pause %.1f ms)",
            domain,
            result.version,
            arm,
            result.checksum[:12],
            result.pause_seconds * 1000,
        )


def reader_of(draft_module: Any, base_draft_fingerprint: str, vocab_size: int | None) -> ReadFiles:
    """Reads adapters that have to fit this draft."""

    def read(files: Path, version: int) -> Adapter:
        return read_adapter(
            files, draft_module, base_draft_fingerprint, version=version, vocab_size=vocab_size
        )

    return read
