"""Follows the champion of every domain and swaps it in. Whatever goes wrong, the present draft keeps serving.

A version becomes the serving draft only if it is READY, not tagged rejected, its files pass every check of
`read_adapter`, and the engine reads the new weights back. One that fails is tagged with the reason, once.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from redraft_models.adapter import Adapter, read_adapter
from redraft_models.apart import apart
from redraft_models.errors import AdapterRejected, RegistryError, RegistryUnavailable
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_names import REJECTED, STATUS

from redraft_serving.engine.interface import Engine

logger = logging.getLogger(__name__)

BASE = "base"
SWAPPED, REFUSED, FAILED = "swapped", "rejected", "failed"
_SWAP_TIMEOUT_SECONDS = 120.0


class SwapWatcher:
    """Polls the champion alias of each domain on a thread of its own, and sooner when `wake` is called.

    Args:
        registry: where champions are; its calls are bounded in time.
        engine: receives the swaps.
        draft_module: the draft that adapters have to fit.
        base_draft_fingerprint: what an adapter's provenance must name.
        domains: the domains to follow, asked at every pass.
        poll_seconds: time between two passes.
        work_dir: where a version's files lie while they are checked.
        vocab_size: ids that have a token; a version's head may name no others.
    """

    def __init__(
        self,
        registry: Registry,
        engine: Engine,
        draft_module: Any,
        base_draft_fingerprint: str,
        domains: Callable[[], Sequence[str]],
        poll_seconds: float,
        work_dir: Path,
        vocab_size: int | None = None,
    ) -> None:
        self._registry = registry
        self._engine = engine
        self._draft_module = draft_module
        self._base_draft_fingerprint = base_draft_fingerprint
        self._domains = domains
        self._poll_seconds = poll_seconds
        self._work_dir = work_dir
        self._vocab_size = vocab_size
        self._serving: dict[str, int | str] = {}
        self._refused: dict[tuple[str, int], str] = {}
        self._complaints: dict[str, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redraft-swap", daemon=True)

    def start(self, wait_seconds: float = 0.0) -> bool:
        """Start; waits up to `wait_seconds` for the first pass. True if that has ended."""
        self._thread.start()
        return self._looked.wait(wait_seconds)

    def stop(self) -> None:
        """End the thread; a pass that waits for the registry is left behind."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2.0)

    def wake(self) -> None:
        """Look now: somebody says that a champion has moved."""
        self._wake.set()

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Swaps by (domain, result): swapped, rejected, failed."""
        with self._lock:
            return dict(self._counts)

    @property
    def serving(self) -> Mapping[str, int | str]:
        """Domain -> version that serves, for the domains that were ever swapped."""
        with self._lock:
            return dict(self._serving)

    def look(self) -> None:
        """One pass over all domains. Never raises."""
        for domain in self._domains():
            try:
                self._follow(domain)
                self._complaints.pop("registry", None)
            except RegistryUnavailable as error:
                self._complain("registry", f"the registry can't be followed: {error}")
                return
            except RegistryError as error:
                self._complain(domain, f"its champion can't be followed: {error}")
            except Exception as error:
                logger.exception("following the champion of domain %s failed", domain)
                self._count(domain, FAILED)
                self._complain(domain, f"{type(error).__name__}: {error}")

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self.look()
            self._looked.set()
            self._wake.wait(self._poll_seconds)

    def _follow(self, domain: str) -> None:
        info = self._registry.champion(domain)
        present = self._serving.get(domain, BASE)
        if info is None:
            if present != BASE:
                self._without_champion(domain, present)
            return
        reason = self._refused.get((domain, info.version))
        if reason is not None:
            # A promotion tags its version as approved after moving the alias, maybe after our refusal.
            if info.validation_status != REJECTED:
                self._tag(info, reason)
            return
        if info.version == present or not info.ready:
            return
        if info.validation_status == REJECTED:
            self._complain(domain, f"champion {info.version} is tagged rejected; version {present} goes on")
            return
        self._take(info)

    def _without_champion(self, domain: str, present: int | str) -> None:
        """No alias: by a rollback to the base draft, or by an accident that changes nothing here."""
        if self._registry.champion_is_base(domain):
            self._swap(domain, None, BASE)
        else:
            self._complain(domain, f"the champion alias is gone; version {present} goes on")

    def _take(self, info: VersionInfo) -> None:
        try:
            adapter = self._fetch(info)
            self._swap(info.domain, adapter, info.version)
        except AdapterRejected as error:
            self._refuse(info, error.reason)

    def _fetch(self, info: VersionInfo) -> Adapter:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="adapter-", dir=self._work_dir) as folder:
            files = self._registry.download(info.domain, info.version, Path(folder))
            return apart(
                lambda: read_adapter(
                    files,
                    self._draft_module,
                    self._base_draft_fingerprint,
                    version=info.version,
                    vocab_size=self._vocab_size,
                )
            )

    def _swap(self, domain: str, adapter: Adapter | None, version: int | str) -> None:
        result = self._engine.swap(domain, adapter, version).result(_SWAP_TIMEOUT_SECONDS)
        with self._lock:
            self._serving[domain] = version
        self._complaints.pop(domain, None)
        self._count(domain, SWAPPED)
        logger.info(
            "domain %s serves draft %s (weights %s, pause %.1f ms)",
            domain,
            result.version,
            result.checksum[:12],
            result.pause_seconds * 1000,
        )

    def _refuse(self, info: VersionInfo, reason: str) -> None:
        """Keep the present draft, never try this version again, and say so where people look."""
        self._refused[info.domain, info.version] = reason
        self._count(info.domain, REFUSED)
        logger.warning("version %d of domain %s is refused: %s", info.version, info.domain, reason)
        self._tag(info, reason)

    def _tag(self, info: VersionInfo, reason: str) -> None:
        # The reason first: whoever sees the status finds it.
        tags = {"decision_reason": f"A serving worker refused it: {reason}", STATUS: REJECTED}
        try:
            self._registry.set_tags(info.domain, info.version, tags)
        except RegistryError as error:
            logger.warning("version %d could not be tagged: %s", info.version, error)

    def _count(self, domain: str, result: str) -> None:
        with self._lock:
            self._counts[domain, result] += 1

    def _complain(self, about: str, message: str) -> None:
        """Log a state once, not at every poll."""
        if self._complaints.get(about) != message:
            self._complaints[about] = message
            logger.warning("%s: %s", about, message)
