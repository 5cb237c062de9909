"""Measurement reports: sums, clusters, refusal of numbers that cannot be an acceptance, JSON and back."""

import json
import math

import pytest
from redraft_trainer.reports import MeasureReport, PositionScore, RequestScore, position_scores


def test_acceptance_rate_weighs_requests_by_their_tokens() -> None:
    report = MeasureReport((RequestScore("a", 90, 90.0), RequestScore("b", 10, 0.0)))
    assert report.acceptance_rate == pytest.approx(0.9)
    assert (report.requests, report.tokens) == (2, 100)


def test_an_empty_report_has_no_rate_and_knows_nothing() -> None:
    report = MeasureReport(())
    assert report.acceptance_rate is None
    assert (report.interval().low, report.interval().high) == (0.0, 1.0)


def test_a_self_draft_measures_one_with_no_spread() -> None:
    report = MeasureReport(tuple(RequestScore(str(i), 20, 20.0) for i in range(40)))
    assert report.acceptance_rate == 1.0
    assert (report.interval().low, report.interval().high) == (1.0, 1.0)


def test_choices_of_one_request_are_one_unit() -> None:
    report = MeasureReport((RequestScore("a", 4, 2.0), RequestScore("a", 6, 3.0), RequestScore("b", 5, 1.0)))
    assert report.requests == 2
    assert report.clusters() == {"a": (10, 5.0), "b": (5, 1.0)}


def test_a_prompt_sent_many_times_is_one_unit() -> None:
    scores = tuple(RequestScore(str(i), 10, 5.0, cluster="one prompt") for i in range(50))
    report = MeasureReport(scores)
    assert report.requests == 50
    assert (report.interval().low, report.interval().high) == (0.0, 1.0)


@pytest.mark.parametrize("overlap", [math.nan, math.inf, -0.1, 11.0])
def test_an_overlap_that_cannot_be_is_refused_with_its_value(overlap: float) -> None:
    with pytest.raises(ValueError, match=r"overlap of .* on 10 tokens"):
        RequestScore("a", 10, overlap)


def test_float_rounding_above_one_is_let_through() -> None:
    assert RequestScore("a", 1000, 1000.0001).overlap > 1000


def test_negative_token_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 tokens"):
        RequestScore("a", -1, 0.0)


def test_reports_survive_json() -> None:
    report = MeasureReport(
        (RequestScore("a", 3, 1.5, "p"),),
        uncovered_tokens=2,
        skipped=1,
        positions=(PositionScore(0, 0, 1, 0.5),),
    )
    assert MeasureReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_positions_are_pooled_in_doubling_bins() -> None:
    scores = position_scores([[1.0, 0.5, 0.0, 0.5, 1.0], [0.0, math.nan]])
    assert [(s.first, s.last, s.tokens, s.overlap) for s in scores] == [
        (0, 0, 2, 1.0),
        (1, 1, 1, 0.5),
        (2, 3, 2, 0.5),
        (4, 7, 1, 1.0),
    ]
    assert scores[0].acceptance_rate == 0.5
