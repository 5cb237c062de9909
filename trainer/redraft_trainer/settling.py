"""Settling a version: carry out what the gate decided, and tell the serving workers."""

from __future__ import annotations

import logging

from redraft_models.registry import VersionInfo
from redraft_queue.errors import StreamUnavailable
from redraft_queue.events import ChampionMoved, publish_champion

from redraft_trainer.context import TrainContext

logger = logging.getLogger(__name__)


def settle(context: TrainContext, info: VersionInfo) -> VersionInfo:
    """The version as it is once it is promoted, a challenger, or rejected; safe to repeat."""
    if info.validation_status != "pending":
        return info
    settled = context.registry.settle(info.domain, info.version, canary=context.canary)
    logger.info(
        "version %d of domain %s: %s. %s",
        settled.version,
        settled.domain,
        "challenger" if settled.canary_running else settled.tags.get("decision"),
        settled.tags.get("decision_reason", ""),
    )
    if settled.validation_status == "approved":
        _publish(context, settled)
    return settled


def _publish(context: TrainContext, settled: VersionInfo) -> None:
    """Wake the workers. A challenger is news as well, and the champion is then the one it was."""
    version: int | None = settled.version
    if settled.canary_running:
        champion = context.registry.champion(settled.domain)
        version = champion.version if champion is not None else None
    try:
        publish_champion(context.client, ChampionMoved(settled.domain, version))
    except StreamUnavailable as error:
        logger.warning("workers will notice version %d at their next poll: %s", settled.version, error)
