"""Live acceptance from heartbeats."""

from __future__ import annotations

from typing import Any

import pytest
from redraft_queue.acceptances import merged, on_trial
from redraft_queue.due import Acceptance
from redraft_queue.heartbeat import SignOfLife


def sign(details: Any, role: str = "serving") -> SignOfLife:
    return SignOfLife(role, "host", 1, 0.0, details)


def live(short: Any, long: Any, tested: Any) -> dict[str, Any]:
    return {"acceptance": {"law": {"short": short, "long": long, "tested": tested}}}


def test_workers_count_by_their_tested_tokens() -> None:
    found = merged([sign(live(0.5, 0.7, 3_000)), sign(live(0.9, 0.9, 1_000)), sign(live(0, 0, 9), "trainer")])
    assert found == {"law": Acceptance(pytest.approx(0.6), pytest.approx(0.75), 4_000)}


def test_a_worker_that_gets_no_more_of_a_domain_shows_no_fall_for_ever() -> None:
    left = live(0.4, 0.6, 1_000_000)
    left["acceptance"]["law"]["idle_seconds"] = 3_600.0
    busy = live(0.6, 0.6, 1_000)
    busy["acceptance"]["law"]["idle_seconds"] = 3.0
    assert merged([sign(left)]) == {}
    assert merged([sign(left), sign(busy)]) == {"law": Acceptance(0.6, 0.6, 1_000)}


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"acceptance": None},
        {"acceptance": [1]},
        {"acceptance": {"law": 5}},
        {"acceptance": {"law": {"short": 0.5}}},
        live(None, 0.5, 10),
        live("x", 0.5, 10),
        live(float("nan"), 0.5, 10),
        live(0.5, 1.5, 10),
        live(0.5, 0.5, 0),
        live(0.5, 0.5, -3),
        live(0.5, 0.5, float("inf")),
        None,
        7,
    ],
)
def test_a_heartbeat_that_makes_no_sense_doesnt_count(details: Any) -> None:
    assert merged([sign(details)]) == {}
    assert merged([sign(details), sign(live(0.5, 0.6, 10))]) == {"law": Acceptance(0.5, 0.6, 10)}


def test_a_challenger_anywhere_is_a_trial() -> None:
    signs = [sign({"challengers": {"law": 4}}), sign({"challengers": {}}), sign({"challengers": 5}), sign({})]
    assert on_trial(signs) == {"law"}
