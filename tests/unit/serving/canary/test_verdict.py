"""What is decided from which evidence, on hand-made sums."""

from __future__ import annotations

import pytest
from redraft_serving.canary.moments import Moments, merged, of_request
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.verdict import judge_canary, judge_watch

SETTINGS = CanarySettings()


def arm(
    rate: float, requests: int = 1000, pace: float = 0.02, tested: int = 80, emitted: int = 100
) -> Moments:
    """Requests of two kinds, ten points of acceptance and 20 % of time apart."""
    kinds = ((rate - 0.05, 0.9 * pace), (rate + 0.05, 1.1 * pace))
    pair = [of_request(tested, round(tested * r), emitted, emitted * p) for r, p in kinds]
    return merged(pair * (requests // 2))


def outcome(challenger: Moments, champion: Moments, seconds: float = 0.0) -> str:
    return judge_canary(challenger, champion, seconds, SETTINGS).outcome


@pytest.mark.parametrize(
    ("rate", "pace", "expected"),
    [
        (0.60, 0.020, "promote"),
        (0.65, 0.020, "promote"),
        (0.55, 0.020, "reject"),
        (0.60, 0.024, "reject"),
        (0.70, 0.024, "reject"),
        (0.55, 0.016, "reject"),
    ],
)
def test_both_acceptance_and_time_must_hold(rate: float, pace: float, expected: str) -> None:
    assert outcome(arm(rate, pace=pace), arm(0.60, 9000)) == expected


def test_the_sentence_holds_the_numbers() -> None:
    verdict = judge_canary(arm(0.55), arm(0.60, 9000), 0.0, SETTINGS)
    assert verdict.sentence.startswith("It is surely accepted less than the champion: acceptance 0.55")
    assert "1000 requests against 9000" in verdict.sentence
    assert verdict.acceptance is not None
    assert verdict.acceptance.low < -0.05 < verdict.acceptance.high < 0


def test_little_evidence_decides_nothing() -> None:
    few = SETTINGS.min_requests - 2
    assert outcome(arm(0.1, few), arm(0.6, 9000)) == "continue"
    assert outcome(arm(0.6, 1000), arm(0.1, few)) == "continue"
    assert outcome(Moments(), Moments()) == "continue"


def test_limits_end_an_undecided_trial() -> None:
    """Alike in acceptance, 2 % slower: neither surely slower nor surely fast enough."""
    many = SETTINGS.max_requests
    open_one = arm(0.60, 100, pace=0.0204)
    assert outcome(open_one, arm(0.60, 9000)) == "continue"
    assert outcome(open_one, arm(0.60, 9000), SETTINGS.max_seconds) == "undecided"
    assert outcome(Moments(), Moments(), SETTINGS.max_seconds) == "undecided"
    wild = merged([of_request(80, 48, 100, 0.3), of_request(80, 48, 100, 5.7)] * (many // 2))
    assert outcome(wild, merged([wild] * 9)) == "undecided"


def test_where_speculation_is_off_time_alone_decides() -> None:
    off, on = arm(0.60, tested=2), arm(0.60, 9000)
    assert outcome(off, on) == "promote"
    assert outcome(arm(0.60, tested=2, pace=0.024), on) == "reject"
    assert judge_canary(off, on, 0.0, SETTINGS).acceptance is None
    # Few tested tokens while speculation is on: acceptance is waited for.
    assert outcome(arm(0.60, 100, tested=8), on) == "continue"


@pytest.mark.parametrize(
    ("rate", "pace", "expected"),
    [
        (0.60, 0.020, "continue"),
        (0.59, 0.020, "continue"),
        (0.52, 0.020, "rollback"),
        (0.60, 0.024, "rollback"),
        (0.70, 0.016, "continue"),
    ],
)
def test_the_watch_goes_back_past_a_margin_only(rate: float, pace: float, expected: str) -> None:
    verdict = judge_watch(arm(rate, 9000, pace), arm(0.60, 500), SETTINGS)
    assert verdict.outcome == expected
    assert "9000 requests against 500" in verdict.sentence


def test_the_watch_waits_for_the_control_arm() -> None:
    few = SETTINGS.min_requests - 2
    waiting = judge_watch(arm(0.2, 9000), arm(0.6, few), SETTINGS)
    assert waiting.outcome == "continue"
    assert waiting.sentence.startswith("Too few requests")
