"""Every number of a drift run, in one place, and the deployment that it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redraft_ops.demo.setup import private_settings
from redraft_ops.settings import Settings


@dataclass(frozen=True)
class DriftPlan:
    """How much is asked, at which pace, and what counts as recovered. Times are seconds."""

    domain: str = "drift"
    seed: int = 0
    clients: int = 6
    think_seconds: float = 6.0
    """Pause of each client between two requests: on two cores a training round needs some room."""
    max_tokens: int = 48
    first_requests: int = 90
    """Prose that the first round learns from."""
    serving_requests: int = 300
    """Prose at most, until the first round's draft serves."""
    level_requests: int = 60
    """Prose that tells the level before the move."""
    second_requests: int = 500
    """Functions at most."""
    recovered_share: float = 0.9
    """Acceptance is back at this share of its level before the move."""
    ready_seconds: float = 300.0
    num_speculative_tokens: int = 2
    serving: dict[str, Any] = field(
        default_factory=lambda: {
            "poll_seconds": 1.0,
            "canary": {"share": 0.5, "min_requests": 15, "min_tested_tokens": 300, "watch_share": 0.1},
            "acceptance_short_tokens": 500.0,
            "acceptance_long_tokens": 5_000.0,
        }
    )
    queue: dict[str, Any] = field(
        default_factory=lambda: {
            "schedule_seconds": 86_400.0,
            "schedule_min_seconds": 20.0,
            "tick_seconds": 1.0,
            "drop_trigger": 0.04,
            "drop_min_tested": 400,
            "min_new_tokens": 3_000,
        }
    )
    """After the first, rounds are asked for by falling acceptance alone."""
    trainer: dict[str, Any] = field(
        default_factory=lambda: {
            "max_steps": 40,
            "eval_every": 20,
            "holdout_percent": 25,
        }
    )
    gate: dict[str, Any] = field(
        default_factory=lambda: {"min_heldout_requests": 15, "min_heldout_tokens": 500}
    )
    models: dict[str, Any] = field(default_factory=lambda: {"dtype": "auto"})
    """The fastest on this machine: what leaves most room for a round beside serving."""


def drift_settings(plan: DriftPlan, out: Path) -> Settings:
    """The settings of every process of the run. What the plan does not name is the user's own."""
    own = {"max_num_seqs": plan.clients, "num_speculative_tokens": plan.num_speculative_tokens}
    return private_settings(
        out,
        plan.domain,
        {**own, **plan.serving},
        queue=plan.queue,
        trainer=plan.trainer,
        gate=plan.gate,
        models=plan.models,
    )
