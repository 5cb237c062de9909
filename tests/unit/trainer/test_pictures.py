"""Pictures of a round: they draw, say what they show, and stand missing data."""

import io

import pytest
from matplotlib.figure import Figure
from redraft_models.registry import VersionInfo
from redraft_trainer.pictures import (
    VersionPoint,
    acceptance_by_position,
    acceptance_by_version,
    training_curves,
    version_points,
)
from redraft_trainer.reports import MeasureReport, RequestScore, position_scores


def report(rate: float) -> MeasureReport:
    overlaps = [[rate] * (5 + i) for i in range(20)]
    scores = tuple(RequestScore(str(i), len(o), sum(o)) for i, o in enumerate(overlaps))
    return MeasureReport(scores, positions=position_scores(overlaps))


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def test_both_drafts_are_named_with_their_rates() -> None:
    figure = acceptance_by_position(report(0.5), report(0.625), "docs_$x$")
    legend = figure.axes[0].get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["champion: 0.500 (0.500 to 0.500)", "candidate: 0.625 (0.625 to 0.625)"]
    assert png(figure).startswith(b"\x89PNG")


def test_versions_are_drawn_as_whole_numbers_with_intervals() -> None:
    points = [VersionPoint(2, 0.6, 0.55, 0.65, 0.5, "promoted"), VersionPoint(1, 0.5)]
    figure = acceptance_by_version(points, "docs")
    assert png(figure).startswith(b"\x89PNG")
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())
    assert figure.axes[0].get_ylim() == pytest.approx((0.45, 0.7))


def test_points_over_versions_come_from_tags_and_stand_what_is_missing() -> None:
    def info(number: int, **tags: str) -> VersionInfo:
        return VersionInfo("faq", number, "run", "READY", 0, "", tags)

    rates = {"acceptance_rate": "0.6", "champion_acceptance_rate": "0.5"}
    points = version_points(
        [
            info(4, **rates, promoted_at="2026", rollback_reason="fell"),
            info(3, **rates, promoted_at="2026", acceptance_ci_low="0.5", acceptance_ci_high="x"),
            info(2, **rates, validation_status="approved", canary="running"),
            info(1, adopted_from="redraft-support/1"),
        ]
    )
    assert points == [
        VersionPoint(4, 0.6, champion=0.5, outcome="rolled back"),
        VersionPoint(3, 0.6, low=0.5, champion=0.5, outcome="promoted"),
        VersionPoint(2, 0.6, champion=0.5, outcome="on trial"),
    ]
    assert png(acceptance_by_version(points, "faq")).startswith(b"\x89PNG")


def test_curves_mark_the_step_that_was_kept() -> None:
    figure = training_curves({0: 2.0, 1: 1.5, 2: 1.2}, {0: 0.3, 2: 0.5}, best_step=2)
    legend = figure.axes[1].get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == "kept: step 2"
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(lambda: acceptance_by_position(MeasureReport(()), MeasureReport(())), id="position"),
        pytest.param(lambda: acceptance_by_version([]), id="version"),
        pytest.param(lambda: training_curves({}, {}), id="curves"),
    ],
)
def test_nothing_to_draw_is_still_a_picture(figure: object) -> None:
    assert callable(figure)
    assert png(figure()).startswith(b"\x89PNG")
