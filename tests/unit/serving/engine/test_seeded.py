"""A seed fixes the answer although the policy's choices follow measured times.

Chi-square limits are exceeded by a right engine in one of 10,000 runs.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from redraft_serving.engine.sampling import pick

from .conftest import MakePair, Serve, Served
from .test_law import words
from .test_sampling import LIMIT_2_DEGREES, LIMIT_4_DEGREES, P, chi_square, top3


def seeded(served: Served, seed: int, tokens: int = 64, **options: object) -> list[int]:
    return served.ask("w0", tokens, temperature=1.0, seed=seed, capture=False, **options).wait(120).ids


@pytest.mark.parametrize(("top_k", "limit"), [(0, LIMIT_4_DEGREES), (3, LIMIT_2_DEGREES)])
def test_seeded_answers_follow_the_law(
    make_pair: MakePair, run_engine: Serve, top_k: int, limit: float
) -> None:
    served = run_engine(make_pair("table"), max_num_seqs=10)
    answers = [
        served.ask("w0", 1000, temperature=1.0, top_k=top_k, seed=seed, capture=False) for seed in range(10)
    ]
    law = top3(P) if top_k else P
    assert chi_square(words([answer.wait(120).ids for answer in answers]), law) < limit


def test_a_seed_is_the_same_with_any_proposer_and_none(make_pair: MakePair, run_engine: Serve) -> None:
    """Alone, among others, without a draft, with another draft, with lookup alone: one answer."""
    pair = make_pair("table")
    found = [seeded(run_engine(pair), 7)]
    crowd = run_engine(pair, max_num_seqs=6)
    others = [crowd.ask("w1", 64, temperature=1.0, seed=s) for s in range(5)]
    found.append(seeded(crowd, 7))
    for other in others:
        other.wait()
    found.append(seeded(run_engine(pair, proposers=()), 7))
    found.append(seeded(run_engine(pair, proposers=("ngram",)), 7))
    found.append(seeded(run_engine(make_pair("table", draft_is_target=True)), 7))
    found.append(seeded(run_engine(make_pair("table", draft=False)), 7))
    assert len({tuple(ids) for ids in found}) == 1
    assert seeded(run_engine(pair), 8) != found[0]


def test_neighbouring_seeds_and_positions_share_nothing(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("table"), max_num_seqs=8)
    answers = [tuple(seeded(served, seed)) for seed in range(8)]
    assert len(set(answers)) == 8
    shifted = [a[1:33] == b[:32] for a, b in pairwise(answers)]
    assert not any(shifted)


def test_the_pick_of_a_noise_follows_its_law() -> None:
    law, generator = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]), torch.Generator().manual_seed(1)
    noise = torch.empty(20_000, 5).exponential_(generator=generator)
    assert chi_square(pick(law, noise), law) < LIMIT_4_DEGREES
    uniform = torch.rand(20_000, 5, generator=generator)
    assert chi_square(pick(law, uniform), law) > LIMIT_4_DEGREES, "the wrong variant: no Gumbel-max"


def test_without_a_seed_answers_differ(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("table"))
    first, second = (served.ask("w0", 64, temperature=1.0, capture=False).wait().ids for _ in range(2))
    assert first != second
