"""When a drift run says that acceptance is back, from answers alone."""

from __future__ import annotations

from pathlib import Path

from redraft_ops.demo.client import Answer
from redraft_ops.demo.prompts import docstring_prompts, topic_prompts
from redraft_ops.drift.plan import DriftPlan
from redraft_ops.drift.report import rows, write_report
from redraft_ops.drift.result import WINDOW, DriftResult, Mark, moving_acceptance


def answers(*parts: tuple[int, int]) -> list[Answer]:
    """(how many, accepted of 10 tested)."""
    return [Answer("p", tested=10, accepted=rate) for count, rate in parts for _ in range(count)]


def drifted(*parts: tuple[int, int], serves: int | None) -> DriftResult:
    result = DriftResult(answers(*parts), moved_at=100, level_before=0.4)
    result.marks.append(Mark(100, "moved", "traffic moves"))
    if serves is not None:
        result.marks.append(Mark(serves, "serves", "version 2 serves"))
    return result


def test_moving_acceptance_pools_counts_and_knows_no_data() -> None:
    assert moving_acceptance([Answer("p")]) == [None]
    uneven = [Answer("p", tested=30, accepted=30), Answer("p", tested=10, accepted=0)]
    assert moving_acceptance(uneven, 2) == [1.0, 0.75]
    assert moving_acceptance(uneven, 1) == [1.0, 0.0]


def test_back_means_a_newer_draft_at_the_level_before() -> None:
    result = drifted((100, 4), (100, 1), (100, 4), serves=200)
    assert result.lowest() == 0.1
    # 0.9 of 0.4: 0.36 needs 35 of the window's 40 answers at 0.4 and 5 at 0.1.
    assert result.recovered_after(0.9) == 100 + 35


def test_it_is_not_back_without_a_newer_draft_or_below_the_level() -> None:
    assert drifted((100, 4), (100, 1), (100, 4), serves=None).recovered_after(0.9) is None
    assert drifted((100, 4), (100, 1), (100, 4), serves=50).recovered_after(0.9) is None
    assert drifted((100, 4), (100, 1), (100, 3), serves=200).recovered_after(0.9) is None


def test_the_two_kinds_of_text_are_enough_and_apart() -> None:
    plan = DriftPlan()
    functions, prose = docstring_prompts(0, (100, 420)), topic_prompts(0, (60, 700))
    assert len(functions) >= plan.first_requests + plan.serving_requests + plan.level_requests
    assert len(prose) >= plan.second_requests
    assert len({*functions, *prose}) == len(functions) + len(prose)


def test_the_report_shows_every_mark(tmp_path: Path) -> None:
    result = drifted((100, 4), (100, 1), (WINDOW * 2, 4), serves=200)
    picture = write_report(result, DriftPlan(), tmp_path)
    assert picture.stat().st_size > 10_000
    assert dict(rows(result, DriftPlan()))["requests until it was back at 90%"] == "135"
    assert (tmp_path / "drift.json").read_text().count('"serves"') == 1
