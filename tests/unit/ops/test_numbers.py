"""The demo's arithmetic, against values worked out by hand."""

from __future__ import annotations

import pytest
from redraft_ops.demo.client import Answer
from redraft_ops.demo.numbers import break_even, expected_tokens, live, longest_pause, speed, usual_pause


def answer(tokens: int, arrivals: tuple[float, ...], **counts: float) -> Answer:
    return Answer("p", "t", tokens, arrivals, **counts)  # type: ignore[arg-type]


def test_live_rates_are_ratios_of_sums() -> None:
    answers = [
        answer(10, (), rounds=5, proposed=15, tested=10, accepted=5, mean_acceptance_length=2.0),
        answer(30, (), rounds=10, proposed=30, tested=30, accepted=25, mean_acceptance_length=3.0),
        Answer("failed", error="500"),
    ]
    found = live(answers)
    assert found.acceptance is not None
    assert found.acceptance.estimate == pytest.approx(30 / 40)
    assert found.acceptance.low < 0.75 < found.acceptance.high
    assert found.mean_acceptance_length == pytest.approx(40 / 15)  # 10/2 + 30/3 rounds
    assert found.requests == 2


def test_without_data_there_is_no_rate() -> None:
    assert live([]).acceptance is None
    assert live([]).mean_acceptance_length is None
    assert speed([]).tokens_per_second is None


def test_speed_leaves_out_the_time_before_the_first_chunk() -> None:
    # Four chunks of two tokens, 0.1 s apart: 6 tokens in 0.3 s, however long the first one took.
    found = speed([answer(8, (5.0, 5.1, 5.2, 5.3))])
    assert found.tokens_per_second == pytest.approx(20.0)
    assert found.seconds_per_round == pytest.approx(0.1)


def test_the_longest_pause_is_that_of_the_swap() -> None:
    answers = [answer(3, (0.0, 5.0, 5.1)), answer(3, (9.0, 9.2, 9.9)), answer(3, (20.0, 29.0))]
    assert longest_pause(answers, 9.1, 9.3) == pytest.approx(0.7)
    assert longest_pause(answers, 100.0, 101.0) == 0.0
    assert usual_pause(answers) == pytest.approx(0.7)


def test_expected_tokens_of_a_round() -> None:
    assert expected_tokens(0.6, 4) == pytest.approx((1 - 0.6**5) / (1 - 0.6))
    assert expected_tokens(1.0, 3) == 4.0


def test_break_even() -> None:
    # A round that costs as much as 1.75 plain tokens at K = 2: 1 + a + a^2 = 1.75 gives a = 0.5.
    assert break_even(1.75, 1.0, 2) == pytest.approx(0.5)
    assert break_even(0.9, 1.0, 2) == 0.0
    assert break_even(3.1, 1.0, 2) is None
    assert break_even(None, 1.0, 2) is None
