"""The thread that makes one pass after the other over all domains, and sooner when it is woken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from redraft_models.errors import RegistryError, RegistryUnavailable
from redraft_models.registry import Registry
from redraft_queue.errors import StreamUnavailable
from redraft_queue.events import ChampionMoved

from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import CHALLENGER, CHAMPION, Engine
from redraft_serving.swap.arms import Arms, reader_of
from redraft_serving.swap.canaries import Canaries
from redraft_serving.swap.champions import Champions
from redraft_serving.swap.decisions import Announce, Decisions
from redraft_serving.swap.served import FAILED, Served
from redraft_serving.swap.watches import Watches

logger = logging.getLogger(__name__)


class SwapWatcher:
    """Follows champions, canaries and watches on a thread of its own.

    Args:
        registry: where versions are; its calls are bounded in time.
        engine: receives the swaps.
        draft_module: the draft that adapters have to fit.
        base_draft_fingerprint: what an adapter's provenance must name.
        domains: the domains to follow, asked at every pass.
        poll_seconds: time between two passes.
        work_dir: where a version's files lie while they are checked.
        vocab_size: ids that have a token; a version's head may name no others.
        trials: canary and watch; None: champions are followed and nothing else.
        announce: tells other workers that a champion has moved.
        adopt_from: the domain whose champion new domains begin with; None: they begin with the base draft.
        shared_drafts: domain -> the domain whose champion serves it.
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
        *,
        trials: Trials | None = None,
        announce: Announce | None = None,
        adopt_from: str | None = None,
        shared_drafts: Mapping[str, str] | None = None,
    ) -> None:
        self._domains = domains
        self._poll_seconds = poll_seconds
        self._shared = dict(shared_drafts or {})
        self._served = Served()
        read = reader_of(draft_module, base_draft_fingerprint, vocab_size)
        arms = Arms(registry, engine, read, work_dir, self._served)
        self._champions = Champions(registry, arms, adopt_from, self._shared)
        self._trials = trials
        if trials is not None:
            decisions = Decisions(registry, trials.store, self._announced(announce))
            self._canaries = Canaries(registry, arms, trials, decisions)
            self._watches = Watches(registry, arms, trials, decisions)
        self._stuck: str | None = None
        """The domain at which the last pass ended early."""
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redraft-swap", daemon=True)

    def start(self, wait_seconds: float = 0.0) -> bool:
        """Start; waits up to `wait_seconds` for the first pass. True if that has ended."""
        self._thread.start()
        return self._looked.wait(wait_seconds)

    def stop(self) -> None:
        """End the thread and report once more; a pass that waits for the registry is left behind."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2.0)
        if self._trials is not None:
            self._trials.flush()

    def wake(self) -> None:
        """Look now: somebody says that a champion has moved."""
        self._wake.set()

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Swaps by (domain, result): swapped, rejected, failed."""
        return self._served.counts

    @property
    def serving(self) -> Mapping[str, int | str]:
        """Domain -> version that serves, for the domains that were ever swapped."""
        return self._served.of_arm(CHAMPION)

    @property
    def challengers(self) -> Mapping[str, int | str]:
        """Domain -> version that is tried on a share of its requests."""
        return self._served.of_arm(CHALLENGER)

    def look(self) -> None:
        """One pass over all domains. Never raises."""
        decide = self._trials is None or self._trials.flush()
        for domain in self._in_turn():
            try:
                decide = self._follow(domain, decide)
            except RegistryUnavailable as error:
                self._served.complain("registry", f"the registry can't be followed: {error}")
                self._stuck = domain
                return
            except RegistryError as error:
                self._served.complain(domain, f"the registry can't be followed for it: {error}")
            except Exception as error:
                self._served.count(domain, FAILED)
                self._served.complain(domain, f"{type(error).__name__}: {error}", error)
        self._served.content("registry")

    def _in_turn(self) -> Sequence[str]:
        """All domains, beginning behind the one that ended the last pass: a server may fail over the files
        of a single version only, and that domain must not keep the others from their turn for ever.
        """
        names, stuck = list(self._domains()), self._stuck
        self._stuck = None
        behind = names.index(stuck) + 1 if stuck in names else 0
        return names[behind:] + names[:behind]

    def _announced(self, announce: Announce | None) -> Announce:
        """What this worker itself has moved is looked at in the next pass, at once."""

        def tell(event: ChampionMoved) -> None:
            self.wake()
            if announce is not None:
                announce(event)

        return tell

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self.look()
            self._looked.set()
            self._wake.wait(self._poll_seconds)

    def _follow(self, domain: str, decide: bool) -> bool:
        """One domain's step; False once Redis has not answered in this pass."""
        champion = self._champions.follow(domain)
        if self._trials is None or domain in self._shared or not decide:
            return decide
        try:
            if not self._canaries.step(domain, champion):
                self._watches.step(domain, champion)
        except StreamUnavailable as error:
            self._served.complain("trials", f"no trial is decided: {error}")
            self._stuck = domain
            return False
        self._served.content("trials")
        return True
