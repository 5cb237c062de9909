"""Watch a training for what must never become a version: values that are not finite, or that have run away.

A final norm hides exploding weights: logits stay finite while the draft is ruined. So sizes are bounded as
well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from torch import nn

from redraft_trainer.errors import Diverged

LARGEST_WEIGHT = 1e3
"""Trained LoRA weights stay far below 10; one AdamW step moves a weight by at most the learning rate."""
MOST_SKIPS = 20
"""Steps in a row that loss scaling may skip while it looks for its scale."""
MOST_HIGH = 3
"""Steps in a row with a loss above the limit; one bad batch may cause a spike that passes."""
ADVICE = "lower learning_rate, or look for broken samples"


class TakenStep(Protocol):
    """What the guard needs of a step."""

    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def grad_norm(self) -> float: ...


class Guard:
    """Raises Diverged. `tolerate_skips`: loss scaling skips steps whose gradient overflowed, which is no
    fault.
    """

    def __init__(self, vocab_size: int, *, tolerate_skips: bool = False) -> None:
        self._limit = 4.0 * math.log(max(vocab_size, 2))
        self._tolerate_skips = tolerate_skips
        self._skips = 0
        self._high = 0

    def check_step(self, taken: TakenStep, *, skipped: bool = False) -> None:
        """Look at a step's loss and gradient; the first loss widens what counts as running away."""
        self._skips = self._skips + 1 if skipped else 0
        may_skip = self._tolerate_skips and skipped and self._skips <= MOST_SKIPS
        if not math.isfinite(taken.loss):
            raise Diverged(f"the loss is {taken.loss} at step {taken.step}: {ADVICE}")
        if not math.isfinite(taken.grad_norm) and not may_skip:
            raise Diverged(f"the gradient's norm is {taken.grad_norm} at step {taken.step}: {ADVICE}")
        if taken.step == 1:
            self._limit = max(self._limit, 2.0 * taken.loss)
        self._high = self._high + 1 if taken.loss > self._limit else 0
        if self._high > MOST_HIGH:
            far = f"{taken.loss:.1f} nats at step {taken.step}, more than {self._limit:.1f}"
            raise Diverged(f"the loss is {far}, so the training ran away: {ADVICE}")

    def check_weights(self, weights: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Look at every trained weight."""
        for name, weight in weights:
            largest = float(weight.detach().abs().max())
            # Also false for NaN.
            if not largest <= LARGEST_WEIGHT:
                raise Diverged(
                    f"the largest weight of {name} is {largest:.3g}, beyond {LARGEST_WEIGHT:.0f}: {ADVICE}"
                )
