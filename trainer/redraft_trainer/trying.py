"""A candidate that is being tried on live traffic: why a round waits for it, and what ends it where nobody
decides: too long a time, or traffic that has moved meanwhile.
"""

from __future__ import annotations

import logging
import time

from redraft_models.registry import VersionInfo
from redraft_models.registry_names import CANARY, CANARY_STARTED, UNDECIDED
from redraft_queue.due import Fall
from redraft_queue.trials import TrialStore

from redraft_trainer.context import TrainContext

logger = logging.getLogger(__name__)

GRACE_SECONDS = 600.0
"""Serving workers end an overdue trial themselves, with its numbers; after this long there are none."""


def on_trial(context: TrainContext, domain: str, round_id: str) -> str | None:
    """Why this round may not run now, also not by an operator's word: a second candidate would take the first
    one's trial away, and be measured against a champion that may soon be another.

    A trial that is long overdue ends here as undecided: where no worker serves the domain, as with samples of
    another engine, no round would ever run again. A round that a fall during the trial asked for does not
    wait: see `end_fallen`. Raises RegistryError, StreamUnavailable.
    """
    running = _running(context, domain)
    if running is None or _overdue(context, running) or _fall(context, running, round_id) is not None:
        return None
    return _waits(running)


def end_fallen(context: TrainContext, domain: str, round_id: str) -> str | None:
    """End the trial during which acceptance fell, since what it has measured is of other traffic; called once
    nothing else keeps the round from training. Returns why the round waits all the same, or None where no
    trial is in its way any more, as after a decision made meanwhile. Raises RegistryError, StreamUnavailable.
    """
    running = _running(context, domain)
    fall = None if running is None else _fall(context, running, round_id)
    if running is None or (fall is not None and _stays_out(context, running, _sentence(fall))):
        return None
    return _waits(running)


def _running(context: TrainContext, domain: str) -> VersionInfo | None:
    return context.registry.running_canary(domain) if context.canary else None


def _fall(context: TrainContext, running: VersionInfo, round_id: str) -> Fall | None:
    """What asked for the round, if it was a fall during this very trial."""
    fall = TrialStore(context.client).fall(running.domain, round_id)
    return fall if fall is not None and fall.trial == running.version else None


def _overdue(context: TrainContext, info: VersionInfo) -> bool:
    """Whether a trial was overdue, and is ended."""
    started = info.tags.get(CANARY_STARTED, "")
    seconds = time.time() - (int(started) if started.isdigit() else info.created_ms) / 1000
    reason = f"No serving worker decided within {context.canary_seconds:g} seconds: it was not tried."
    return seconds >= context.canary_seconds + GRACE_SECONDS and _stays_out(context, info, reason)


def _stays_out(context: TrainContext, info: VersionInfo, reason: str) -> bool:
    """End a trial as undecided, unless it is decided already; False: somebody else is deciding just now."""
    store = TrialStore(context.client)
    with store.deciding(info.domain) as mine:
        if mine and context.registry.version(info.domain, info.version).canary_running:
            logger.warning("version %d of domain %s stays out: %s", info.version, info.domain, reason)
            store.lost(info.domain, info.version)
            context.registry.reject(info.domain, info.version, reason, {CANARY: UNDECIDED})
    return mine


def _sentence(fall: Fall) -> str:
    moved = f"acceptance fell from {fall.before:.2f} to {fall.now:.2f}"
    return f"The traffic moved while it was tried: {moved}."


def _waits(running: VersionInfo) -> str:
    return (
        f"version {running.version} serves a share of the traffic as challenger; "
        "the next round waits for its decision"
    )
