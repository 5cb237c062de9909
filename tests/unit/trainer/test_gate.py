"""The gate on hand-made and simulated pairs of drafts."""

from collections.abc import Callable

import numpy as np
import pytest
from redraft_trainer.gate import Decision, decide
from redraft_trainer.reports import MeasureReport, RequestScore
from redraft_trainer.settings import GateSettings

SETTINGS = GateSettings()
Pair = tuple[MeasureReport, MeasureReport]


def flat(rate: float, requests: int = 100, tokens: int = 100, spread: float = 0.05) -> MeasureReport:
    """Requests whose acceptance alternates around `rate`."""
    return MeasureReport(
        tuple(
            RequestScore(str(i), tokens, tokens * (rate + spread * (-1) ** (i // 2))) for i in range(requests)
        )
    )


def simulated(
    rng: np.random.Generator, requests: int, mean_tokens: float, gain: float, spread: float
) -> Pair:
    """A champion of 0.55 and a candidate that gains `gain` on average and differs by request with `spread`.

    Requests have unequal lengths (log-normal); noise within a request shrinks with its length.
    """
    tokens = np.maximum(1, rng.lognormal(-0.32, 0.8, requests) * mean_tokens).astype(int)
    before = rng.normal(0.55, 0.12, requests)
    after = before + gain + rng.normal(0.0, spread, requests)
    noise = 0.3 / np.sqrt(tokens)
    reports = [
        MeasureReport(
            tuple(
                RequestScore(str(i), int(count), float(count * np.clip(rate, 0.0, 1.0)))
                for i, (count, rate) in enumerate(zip(tokens, rng.normal(rates, noise), strict=True))
            )
        )
        for rates in (before, after)
    ]
    return reports[0], reports[1]


def share_promoted(pairs: int, seed: int, make: Callable[[np.random.Generator], Pair]) -> float:
    rng = np.random.default_rng(seed)
    return sum(decide(*make(rng), SETTINGS).promoted for _ in range(pairs)) / pairs


@pytest.mark.parametrize(("requests", "spread"), [(30, 0.05), (30, 0.15), (100, 0.1)])
def test_equal_drafts_are_promoted_at_most_five_percent_of_the_time(requests: int, spread: float) -> None:
    """The true share is 3.6 %; 5 % of 1,500 seeded trials lies 2.9 standard deviations above (2e-3 each)."""
    assert share_promoted(1500, 5, lambda rng: simulated(rng, requests, 60, 0.0, spread)) <= 0.05


def test_a_gain_of_three_points_on_thirty_thousand_tokens_is_found() -> None:
    """True power is above 0.97 here; 90 % of 300 seeded trials lies more than 5 deviations below."""
    assert share_promoted(300, 6, lambda rng: simulated(rng, 300, 100, 0.03, 0.1)) >= 0.90


def test_counting_tokens_as_independent_would_promote_equal_drafts_far_too_often() -> None:
    """The wrong variant: every ten tokens their own unit. It must break the bound that the gate keeps."""

    def unclustered(report: MeasureReport) -> MeasureReport:
        return MeasureReport(
            tuple(
                RequestScore(f"{score.request_id}/{part}", 10, 10 * score.overlap / score.tokens)
                for score in report.scores
                for part in range(max(1, score.tokens // 10))
            )
        )

    def make(rng: np.random.Generator) -> Pair:
        champion, candidate = simulated(rng, 30, 200, 0.0, 0.15)
        return unclustered(champion), unclustered(candidate)

    assert share_promoted(200, 7, make) > 0.15


def test_a_small_gain_that_all_requests_share_is_found_because_the_comparison_is_paired() -> None:
    champion = flat(0.55, requests=40, spread=0.2)
    candidate = MeasureReport(
        tuple(
            RequestScore(s.request_id, s.tokens, s.overlap + 1 + 0.1 * (i % 3))
            for i, s in enumerate(champion.scores)
        )
    )
    decision = decide(champion, candidate, SETTINGS)
    assert decision.promoted
    assert decision.gain is not None
    assert (champion.interval().high - champion.interval().low) / 2 > 4 * decision.gain


def test_a_clear_gain_is_promoted_with_all_numbers() -> None:
    decision = decide(flat(0.55), flat(0.60, spread=0.06), SETTINGS)
    assert decision.promoted
    assert decision.gain == pytest.approx(0.05)
    assert decision.gain_ci_low is not None
    assert decision.gain_ci_high is not None
    assert 0.04 < decision.gain_ci_low < 0.05 < decision.gain_ci_high
    assert decision.acceptance_rate == pytest.approx(0.60)
    assert decision.champion_acceptance_rate == pytest.approx(0.55)
    assert (decision.heldout_requests, decision.heldout_tokens) == (100, 10_000)
    assert "0.6000 exceeds the champion's 0.5500" in decision.reason


def test_a_worse_candidate_is_refused_however_well_its_loss_looked() -> None:
    decision = decide(flat(0.60), flat(0.50), SETTINGS)
    assert not decision.promoted
    assert "0.5000 does not exceed the champion's 0.6000" in decision.reason


def test_the_same_draft_twice_is_refused() -> None:
    decision = decide(flat(0.60), flat(0.60), SETTINGS)
    assert not decision.promoted
    assert (decision.gain, decision.gain_ci_low) == (0.0, 0.0)


def test_an_uncertain_gain_is_refused_with_its_lower_end() -> None:
    champion = flat(0.55, requests=30)
    candidate = MeasureReport(
        tuple(
            RequestScore(s.request_id, s.tokens, s.overlap + (10 if i % 2 else -8))
            for i, s in enumerate(champion.scores)
        )
    )
    decision = decide(champion, candidate, SETTINGS)
    assert not decision.promoted
    assert decision.gain is not None
    assert decision.gain > 0
    assert "is not certain" in decision.reason


def test_the_lower_end_must_exceed_the_smallest_gain_asked_for() -> None:
    champion, candidate = flat(0.55), flat(0.60, spread=0.06)
    assert decide(champion, candidate, GateSettings(min_gain=0.04)).promoted
    refused = decide(champion, candidate, GateSettings(min_gain=0.0495))
    assert not refused.promoted
    assert "0.0495" in refused.reason
    assert "by more than 0.06" in decide(champion, candidate, GateSettings(min_gain=0.06)).reason


def test_too_few_requests_or_tokens_decide_nothing() -> None:
    few = decide(flat(0.4, requests=29), flat(0.9, requests=29), SETTINGS)
    assert not few.promoted
    assert "Only 29 held-out requests" in few.reason
    short = decide(flat(0.4, tokens=9), flat(0.9, tokens=9), SETTINGS)
    assert not short.promoted
    assert "Only 900 held-out tokens" in short.reason


def test_a_draft_that_spoils_another_domain_is_refused() -> None:
    better = (flat(0.55), flat(0.60))
    worse = decide(*better, SETTINGS, {"law": (flat(0.70), flat(0.67)), "code": (flat(0.5), flat(0.5))})
    assert not worse.promoted
    assert "In the domain law" in worse.reason
    assert "0.6700 falls 0.0300 below the champion's 0.7000" in worse.reason
    assert decide(*better, SETTINGS, {"law": (flat(0.70), flat(0.69))}).promoted


def test_another_domain_with_little_traffic_does_not_decide() -> None:
    """On ten requests, chance alone may take more than `max_regression` from two equal drafts."""
    better = (flat(0.55), flat(0.60))
    assert decide(*better, SETTINGS, {"law": (flat(0.7, requests=10), flat(0.5, requests=10))}).promoted
    assert not decide(*better, SETTINGS, {"law": (flat(0.7, requests=40), flat(0.5, requests=40))}).promoted


def test_reports_on_different_continuations_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same continuations"):
        decide(flat(0.5, requests=50), flat(0.6, requests=60), SETTINGS)
    with pytest.raises(ValueError, match="same continuations"):
        decide(flat(0.5, tokens=50), flat(0.6, tokens=60), SETTINGS)


def test_nothing_measured_is_refused_not_a_crash() -> None:
    decision = decide(MeasureReport(()), MeasureReport(()), SETTINGS)
    assert not decision.promoted
    assert (decision.gain, decision.gain_ci_low, decision.acceptance_rate) == (None, None, None)
    assert "gain" not in decision.tags()


def test_the_order_of_the_scores_does_not_matter() -> None:
    champion, candidate = flat(0.55), flat(0.56, spread=0.07)
    turned = MeasureReport(candidate.scores[::-1])
    assert decide(champion, turned, SETTINGS).decision == decide(champion, candidate, SETTINGS).decision


def test_tags_are_the_names_that_the_registry_shows() -> None:
    decision = Decision("promoted", "Because.", 0.05, 0.04, 0.06, 0.6, 0.55, 100, 10_000)
    assert decision.tags() == {
        "decision": "promoted",
        "decision_reason": "Because.",
        "gain": "0.05",
        "gain_ci_low": "0.04",
        "gain_ci_high": "0.06",
        "acceptance_rate": "0.6",
        "champion_acceptance_rate": "0.55",
        "heldout_requests": "100",
        "heldout_tokens": "10000",
    }
