"""What a round read, as datasets of its run: MLflow's table of runs then finds rounds on one range."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from redraft_models.errors import RegistryError
from redraft_models.registry_runs import RunData

from redraft_trainer.plan import Collected, Plan

if TYPE_CHECKING:
    from redraft_models.registry import Registry

logger = logging.getLogger(__name__)

_DATA: tuple[tuple[str, Literal["training", "eval"], str], ...] = (
    ("training samples", "training", "train"),
    ("held-out samples", "eval", "heldout"),
)
"""Name, MLflow's context and the part of the range of what a round reads."""


def log_data(registry: Registry, run_id: str, plan: Plan, found: Collected) -> None:
    """The range of the stream as the run's datasets. Only people read it, so a failure is only told."""
    source = {"domain": plan.domain, "after_id": plan.after_id, "last_id": plan.last_id}
    data = [
        RunData(
            f"{plan.domain} {name}",
            context,
            {**source, "part": part},
            {"requests": found.requests[part], "tokens": found.tokens[part]},
        )
        for name, context, part in _DATA
    ]
    try:
        registry.log_data(run_id, data)
    except RegistryError as error:
        logger.warning("the run %s does not say what it read: %s", run_id, error)
