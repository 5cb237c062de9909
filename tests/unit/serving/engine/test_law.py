"""The table pair through the engine: the numbers of a hand calculation.

Every request is seeded. Chi-square limits are exceeded by a right engine in one of 10,000 runs.
"""

from __future__ import annotations

import pytest
import torch

from .conftest import MakePair, Serve
from .test_sampling import LIMIT_2_DEGREES, LIMIT_4_DEGREES, P, chi_square, top3

FIRST_WORD = 3


def words(answers: list[list[int]]) -> torch.Tensor:
    return torch.tensor([token - FIRST_WORD for answer in answers for token in answer])


@pytest.mark.parametrize(("top_k", "limit"), [(0, LIMIT_4_DEGREES), (3, LIMIT_2_DEGREES)])
def test_words_follow_the_table(make_pair: MakePair, run_engine: Serve, top_k: int, limit: float) -> None:
    served = run_engine(make_pair("table"), num_speculative_tokens=4, max_num_seqs=10)
    answers = [
        served.ask("w0", 2000, temperature=1.0, top_k=top_k, seed=seed, capture=False) for seed in range(10)
    ]
    law = top3(P) if top_k else P
    assert chi_square(words([answer.wait(120).ids for answer in answers]), law) < limit
    rate = served.engine.statistics()
    expected = 0.4575 if top_k else 0.60
    assert rate.accepted / rate.tested == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("cut", [{"top_p": 0.8}, {"min_p": 0.25}])
def test_other_cuts_reach_draft_and_target(
    make_pair: MakePair, run_engine: Serve, cut: dict[str, float]
) -> None:
    """Both leave three words of each law: those of the target that top_k 3 leaves, accepted as often.

    Four standard deviations of the rate are 0.04 (6e-5).
    """
    served = run_engine(make_pair("table"), num_speculative_tokens=4, max_num_seqs=10)
    answers = [served.ask("w0", 400, temperature=1.0, seed=s, capture=False, **cut) for s in range(10)]
    assert chi_square(words([answer.wait().ids for answer in answers]), top3(P)) < LIMIT_2_DEGREES
    counts = served.engine.statistics()
    assert counts.accepted / counts.tested == pytest.approx(0.4575, abs=0.04)


def test_acceptance_does_not_depend_on_k(make_pair: MakePair, run_engine: Serve) -> None:
    """accepted/tested is 0.60 at K = 2 and 8; accepted/proposed is 0.480 and 0.184 for the same draft."""
    pair = make_pair("table")
    for k, per_proposed in ((2, 0.480), (8, 0.1844)):
        served = run_engine(pair, num_speculative_tokens=k, max_num_seqs=8)
        answers = [served.ask("w0", 500, temperature=1.0, seed=s, capture=False) for s in range(8)]
        for answer in answers:
            answer.wait()
        counts = served.engine.statistics()
        assert counts.accepted / counts.tested == pytest.approx(0.60, abs=0.03)
        assert counts.accepted / counts.proposed == pytest.approx(per_proposed, abs=0.03)
        assert sum(counts.accepted_per_position) == counts.accepted
        assert sum(counts.tested_per_position) == counts.tested


def test_k_is_kept(make_pair: MakePair, run_engine: Serve) -> None:
    """Every round but the last proposes exactly K; the same seed gives the same rounds again."""
    served = run_engine(make_pair("table"), num_speculative_tokens=3)
    first, second = (served.ask("w0", 300, temperature=1.0, seed=5).wait() for _ in range(2))
    assert first.ids == second.ids
    assert first.statistics.accepted_histogram == second.statistics.accepted_histogram
    full_rounds = first.statistics.rounds - 1
    assert first.statistics.proposed in range(3 * full_rounds - 3, 3 * full_rounds + 4)


def test_a_draft_equal_to_the_target_is_always_right(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("table", draft_is_target=True), num_speculative_tokens=4, max_num_seqs=10)
    answers = [served.ask("w0", 1500, temperature=1.0, seed=s, capture=False) for s in range(10)]
    assert chi_square(words([answer.wait(120).ids for answer in answers]), P) < LIMIT_4_DEGREES
    counts = served.engine.statistics()
    assert counts.accepted == counts.tested == counts.proposed


def test_rows_without_a_token_are_never_drawn(make_pair: MakePair, run_engine: Serve) -> None:
    """A vocabulary padded to 16, whose padding rows have the largest logits of all."""
    served = run_engine(make_pair("table", padded_rows=8), num_speculative_tokens=4, max_num_seqs=10)
    answers = [served.ask("w0", 1000, temperature=1.0, seed=s, capture=False) for s in range(10)]
    drawn = words([answer.wait(120).ids for answer in answers])
    assert int(drawn.max()) < 5
    assert chi_square(drawn, P) < LIMIT_4_DEGREES


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-12])
def test_tiny_temperatures_are_greedy(make_pair: MakePair, run_engine: Serve, temperature: float) -> None:
    served = run_engine(make_pair("table"), num_speculative_tokens=4)
    assert served.ask("w0", 12, temperature=temperature).wait().text.split() == ["w0"] * 12


def test_seeds(make_pair: MakePair, run_engine: Serve) -> None:
    """A seed fixes the answer alone, among neighbours and in another engine; no seed is fresh each time."""
    pair = make_pair("table")
    served = run_engine(pair, num_speculative_tokens=4, max_num_seqs=8)
    alone = served.ask("w0", 64, temperature=1.0, seed=7).wait().ids
    mixed = [served.ask("w1", 40 + i, temperature=1.0, seed=i if i % 2 else None) for i in range(8)]
    among = served.ask("w0", 64, temperature=1.0, seed=7).wait().ids
    for answer in mixed:
        answer.wait()
    restarted = run_engine(pair, num_speculative_tokens=4).ask("w0", 64, temperature=1.0, seed=7).wait().ids
    assert alone == among == restarted
    fresh = [served.ask("w0", 64, temperature=1.0).wait().ids for _ in range(2)]
    assert fresh[0] != fresh[1]
