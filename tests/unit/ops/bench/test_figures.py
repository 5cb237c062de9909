"""Statistics of a run, on answers made up by hand."""

from __future__ import annotations

import pytest
from redraft_ops.bench.answers import Answer, Block, spread
from redraft_ops.bench.figures import figures, meets, paired, percentile
from redraft_ops.bench.plan import Goal


def answer(*chunks: tuple[float, int], **counts: int) -> Answer:
    return Answer(0, ids=(7,), chunks=chunks, seconds=chunks[-1][0], **counts)


def block(tokens: int, seconds: float) -> Block:
    return Block((answer((seconds, tokens)),), seconds)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([3.0], 99, 3.0), ([1.0, 2.0, 3.0, 4.0], 50, 2.5), ([4.0, 1.0, 3.0, 2.0, 5.0], 75, 4.0)],
)
def test_percentiles(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_a_percentile_is_that_of_numpy() -> None:
    import numpy

    values = [float(n * n % 97) for n in range(41)]
    for percent in (1, 50, 95, 99):
        assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))


def test_a_chunk_of_several_tokens_counts_as_so_many() -> None:
    one = answer((1.0, 2), (1.3, 3), (1.4, 1))
    assert (one.tokens, one.first_token) == (6, 1.0)
    assert one.chunk_gaps == pytest.approx([0.3, 0.1])
    assert one.token_gaps == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert one.mean_gap == pytest.approx(0.4 / 5)


def test_an_answer_of_one_token_has_no_pace() -> None:
    one = answer((0.5, 1))
    assert (one.mean_gap, one.token_gaps, one.chunk_gaps) == (None, [], [])
    assert meets(one, Goal(600, 0.001))
    assert not meets(one, Goal(400))


def test_tokens_are_spread_over_chunks_without_counts() -> None:
    assert [tokens for _, tokens in spread(10, [0.1, 0.2, 0.3, 0.4])] == [2, 3, 2, 3]
    assert spread(3, []) == ()


def test_rates_come_from_counts() -> None:
    """A mean of rates would say 0.75; of 11 tested tokens 3 were accepted."""
    few, many = (
        answer((1.0, 1), rounds=1, tested=1, accepted=1),
        answer((1.0, 9), rounds=5, tested=10, accepted=2),
    )
    found = figures([Block((few, many), 2.0)], Goal())
    assert found["acceptance_rate"] == pytest.approx(3 / 11)
    assert found["mean_acceptance_length"] == pytest.approx(10 / 6)
    assert (found["tokens_per_second"], found["requests_per_second"]) == (5.0, 1.0)


def test_the_median_block_is_not_moved_by_one_slow_one() -> None:
    found = figures([block(10, 1.0), block(10, 1.0), block(10, 100.0)], Goal())
    assert found["tokens_per_second"] == 10.0
    assert found["tokens_per_second_overall"] == pytest.approx(30 / 102)


def test_nothing_answered_gives_null_and_no_nan() -> None:
    found = figures([Block((Answer(0, error="429"),), 1.0)], Goal(1, 1))
    assert (found["failed"], found["tokens"], found["within_goal"]) == (1, 0, 0.0)
    assert found["ttft_ms_p50"] is found["tokens_per_second"] is found["acceptance_rate"] is None


def test_goodput_counts_what_met_both_goals() -> None:
    quick, slow_start, slow_pace = (
        answer((0.1, 1), (0.2, 1)),
        answer((0.9, 1), (1.0, 1)),
        answer((0.1, 1), (0.9, 1)),
    )
    failed = Answer(3, error="broken")
    found = figures([Block((quick, slow_start, slow_pace, failed), 4.0)], Goal(500, 300))
    assert found["goodput_requests_per_second"] == 0.25
    assert found["within_goal"] == 0.25
    assert figures([Block((quick,), 1.0)], Goal())["within_goal"] is None


def test_ratios_are_paired_by_block() -> None:
    """Medians apart would say 1.0: each side has one slow block, but not the same one."""
    own, base = (
        [block(10, 1.0), block(10, 2.0), block(10, 4.0)],
        [block(10, 2.0), block(10, 4.0), block(10, 1.0)],
    )
    assert paired(own, base)["ratio"] == 2.0
    assert paired(own, own) == {"ratio": 1.0, "ratio_p25": 1.0, "ratio_p75": 1.0}
