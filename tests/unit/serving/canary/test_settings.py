"""Settings of canary and watch that contradict each other are refused in one sentence."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.settings import ServingSettings


@pytest.mark.parametrize("name", ["max_requests", "watch_window_requests"])
def test_a_trial_is_not_over_before_anything_may_be_decided(name: str) -> None:
    with pytest.raises(
        ValidationError, match=f"{name} is 300, but nothing is decided before min_requests, 400"
    ):
        CanarySettings(**{"min_requests": 400, "max_requests": 4000, "watch_window_requests": 400, name: 300})


def test_what_is_switched_off_contradicts_nothing() -> None:
    assert CanarySettings(min_requests=400, watch_share=0).watch_window_requests == 300
    assert CanarySettings(min_requests=5000, watch_window_requests=5000, share=0).max_requests == 4000


def test_the_short_average_is_the_shorter_one() -> None:
    with pytest.raises(ValidationError, match="acceptance_short_tokens is 200000, but must be less than"):
        ServingSettings(acceptance_short_tokens=200_000.0)
