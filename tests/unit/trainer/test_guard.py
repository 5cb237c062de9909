"""The guard lets ordinary trainings pass and stops ruined ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from redraft_trainer.distil import Step
from redraft_trainer.errors import Diverged
from redraft_trainer.guard import MOST_HIGH, MOST_SKIPS, Guard
from torch import nn


def step(number: int, loss: float = 1.0, norm: float = 1.0) -> Step:
    return Step(number, loss, 1e-3, norm)


def objection(check: Callable[[Any], None], looked_at: object) -> str | None:
    """What the guard says of a step or of weights; None where it lets them pass."""
    try:
        check(looked_at)
    except Diverged as error:
        return str(error)
    return None


def test_an_ordinary_training_passes() -> None:
    guard = Guard(100)
    for number, loss in enumerate((9.0, 6.0, 17.0, 3.0, 2.0), start=1):
        assert objection(guard.check_step, step(number, loss)) is None
    assert objection(guard.check_weights, [("a", nn.Parameter(torch.full((3,), 5.0)))]) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_stop_it(value: float) -> None:
    with pytest.raises(Diverged, match="loss is"):
        Guard(100).check_step(step(1, loss=value))
    with pytest.raises(Diverged, match="gradient's norm is"):
        Guard(100).check_step(step(1, norm=value))
    with pytest.raises(Diverged, match="largest weight of a is"):
        Guard(100).check_weights([("a", nn.Parameter(torch.tensor([1.0, value])))])


def test_a_loss_that_stays_high_stops_it_and_a_spike_does_not() -> None:
    guard = Guard(100)
    guard.check_step(step(1, 5.0))
    guard.check_step(step(2, 50.0))
    guard.check_step(step(3, 4.0))
    for number in range(4, 4 + MOST_HIGH):
        guard.check_step(step(number, 50.0))
    with pytest.raises(Diverged, match="ran away"):
        guard.check_step(step(9, 50.0))


def test_weights_that_ran_away_stop_it() -> None:
    with pytest.raises(Diverged, match="beyond"):
        Guard(100).check_weights([("a", nn.Parameter(torch.tensor([1e9])))])


def test_loss_scaling_may_skip_some_steps() -> None:
    guard = Guard(100, tolerate_skips=True)
    for number in range(1, MOST_SKIPS + 1):
        guard.check_step(step(number, norm=math.inf), skipped=True)
    with pytest.raises(Diverged):
        guard.check_step(step(MOST_SKIPS + 1, norm=math.inf), skipped=True)
