"""Every number of a demo run, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class DemoPlan:
    """How much is asked, trained and measured. Tokens are of the target's tokenizer; times are seconds."""

    pair: Literal["default", "learn"] = "default"
    """The shipped target and draft, or the toy pair that learns."""
    domain: str = "stdlib-docstrings"
    seed: int = 0

    prompts: int = 150
    """Requests answered by the base draft; they are what the first round learns from."""
    fresh_prompts: int = 40
    """Requests answered after the last swap."""
    clients: int = 8
    max_tokens: int = 48
    temperature: float = 0.0
    prompt_characters: tuple[int, int] = (100, 420)
    """Shortest and longest source of a function that is asked about."""

    probes: int = 6
    """Prompts sent one at a time, three times: speculation off, base draft, new draft. They are never
    captured.
    """
    probe_tokens: int = 40
    greedy_checks: int = 4
    """Probes whose text is compared with a plain greedy loop over the target."""

    rounds: int = 1
    serving_threads: int | None = None
    worker_threads: int | None = None
    streams_from: float = 0.9
    """Share of the training steps after which the streams start that the swap happens under."""
    ready_seconds: float = 300.0
    round_seconds: float = 900.0
    swap_seconds: float = 60.0
    swap_tail_seconds: float = 3.0
    """How long the streams run on after the swap."""
    num_speculative_tokens: int = 2
    trainer: dict[str, Any] = field(
        default_factory=lambda: {
            "max_steps": 80,
            "eval_every": 20,
            "holdout_percent": 25,
            # Beside streams without a pause, the idle class would get nothing on two cores.
            "priority": "low",
            "num_threads": len(os.sched_getaffinity(0)),
        }
    )
    gate: dict[str, Any] = field(
        default_factory=lambda: {"min_heldout_requests": 20, "min_heldout_tokens": 600}
    )
    models: dict[str, Any] = field(default_factory=dict)


def full_plan() -> DemoPlan:
    """7 to 12 minutes on 2 cores."""
    return DemoPlan()


def quick_plan() -> DemoPlan:
    """Under a minute, on the toy pair."""
    return DemoPlan(
        pair="learn",
        domain="toy",
        prompts=160,
        fresh_prompts=40,
        max_tokens=24,
        temperature=1.0,
        probes=4,
        probe_tokens=32,
        greedy_checks=4,
        serving_threads=1,
        worker_threads=1,
        streams_from=0.0,
        trainer={
            "max_steps": 40,
            "priority": "low",
            "eval_every": 20,
            "learning_rate": 1e-2,
            "rank": 16,
            "lora_alpha": 16.0,
            "batch_size": 16,
            "num_threads": 1,
        },
        gate={"min_heldout_requests": 10, "min_heldout_tokens": 200},
    )
