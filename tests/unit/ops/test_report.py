"""Table, Markdown, picture and JSON of a demo result."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from redraft_ops.demo.numbers import LiveCounts, Speed
from redraft_ops.demo.plan import full_plan, quick_plan
from redraft_ops.demo.report import rows, write_report
from redraft_ops.demo.result import DemoResult, Side
from redraft_trainer.intervals import Interval

KEYS = {
    "acceptance_rate_before",
    "acceptance_rate_after",
    "gain",
    "gain_ci_low",
    "live_acceptance_rate_before",
    "live_acceptance_rate_after",
    "mean_acceptance_length_before",
    "mean_acceptance_length_after",
    "tokens_per_second_off",
    "tokens_per_second_before",
    "tokens_per_second_after",
    "longest_pause_seconds",
    "failed_requests",
    "greedy_equal",
    "seconds",
}


@pytest.fixture
def result() -> DemoResult:
    def side(name: str, rate: float, speed: float) -> Side:
        interval = Interval(rate, rate - 0.05, rate + 0.05)
        counts = LiveCounts(50, 2000, interval, 1 + rate)
        return Side(name, interval, 40, 1800, counts, Speed(speed, 0.05))

    return DemoResult(
        before=side("base draft", 0.4, 20.0),
        after=side("version 1", 0.6, 30.0),
        gain=Interval(0.2, 0.15, 0.25),
        off=Speed(25.0, 0.04),
        num_speculative_tokens=3,
        decision="0.60 exceeds 0.40.",
        longest_pause_seconds=0.31,
        usual_pause_seconds=0.05,
        streams_during_swap=8,
        requests=400,
        failures=(),
        greedy_equal=True,
        seconds=700.0,
    )


def test_json_has_exactly_the_promised_keys(result: DemoResult) -> None:
    document = result.to_json()
    assert set(document) == KEYS
    assert document["gain"] == pytest.approx(0.2)
    json.dumps(document, allow_nan=False)


def test_a_rate_without_data_is_null_and_never_nan(result: DemoResult) -> None:
    nothing = Interval(math.nan, -math.inf, math.inf)
    empty = replace(
        result.after, measured=nothing, live=LiveCounts(0, 0, None, None), speed=Speed(None, None)
    )
    bare = replace(result, after=empty, gain=nothing, off=Speed(None, None))
    document = bare.to_json()
    assert document["acceptance_rate_after"] is None
    assert document["tokens_per_second_off"] is None
    json.dumps(document, allow_nan=False)
    assert "nan" not in str(rows(bare)).lower()


def test_the_report_holds_every_row_and_a_picture(result: DemoResult, tmp_path: Path) -> None:
    path = write_report(result, full_plan(), tmp_path, "mlflow server --port 5000")
    text = path.read_text()
    for label, *_ in rows(result):
        assert label in text
    assert "mlflow server --port 5000" in text
    assert "0.600 [0.550, 0.650]" in text
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads((tmp_path / "result.json").read_text())) == KEYS


def test_greedy_text_that_differs_cannot_be_overlooked(result: DemoResult) -> None:
    assert rows(replace(result, greedy_equal=False))[-1][-1] == "NO"


def test_quick_plan_is_the_toy() -> None:
    assert quick_plan().pair == "learn"
    assert full_plan().pair == "default"
