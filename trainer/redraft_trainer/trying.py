"""A candidate that is being tried on live traffic: why a round waits for it, and what ends it where nobody
decides.
"""

from __future__ import annotations

import logging
import time

from redraft_models.registry import VersionInfo
from redraft_models.registry_names import CANARY, CANARY_STARTED, UNDECIDED
from redraft_queue.trials import TrialStore

from redraft_trainer.context import TrainContext

logger = logging.getLogger(__name__)

GRACE_SECONDS = 600.0
"""Serving workers end an overdue trial themselves, with its numbers; after this long there are none."""


def on_trial(context: TrainContext, domain: str) -> str | None:
    """Why no round may run now, also not by an operator's word: a second candidate would take the first
    one's trial away, and be measured against a champion that may soon be another.

    A trial that is long overdue ends here as undecided: where no worker serves the domain, as with samples of
    another engine, no round would ever run again. Raises RegistryError, StreamUnavailable.
    """
    running = context.registry.running_canary(domain) if context.canary else None
    if running is None or _ended(context, running):
        return None
    return (
        f"version {running.version} serves a share of the traffic as challenger; "
        "the next round waits for its decision"
    )


def _ended(context: TrainContext, info: VersionInfo) -> bool:
    started = info.tags.get(CANARY_STARTED, "")
    seconds = time.time() - (int(started) if started.isdigit() else info.created_ms) / 1000
    if seconds < context.canary_seconds + GRACE_SECONDS:
        return False
    store = TrialStore(context.client)
    with store.deciding(info.domain) as mine:
        if not mine:
            return False
        if context.registry.version(info.domain, info.version).canary_running:
            reason = f"No serving worker decided within {context.canary_seconds:g} seconds: it was not tried."
            logger.warning("version %d of domain %s stays out: %s", info.version, info.domain, reason)
            store.lost(info.domain, info.version)
            context.registry.reject(info.domain, info.version, reason, {CANARY: UNDECIDED})
    return True
