"""Proposals without a law of their own are one-hots, and the tokens still follow the target.

False alarms: chi-square limits at 1e-4 for each token of the table, so 3e-4 a test of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from redraft_serving.engine.lookup import NgramIndex
from redraft_serving.engine.prediction import PredictedOutput
from redraft_serving.engine.sampling import accept_sampled, draw
from torch import Tensor

TABLE = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.45, 0.5, 0.05]])
"""The target: the law of the next token, given the last one."""
ROWS, LENGTH, K = 400, 30, 3
LIMIT_2_DEGREES = 18.4

Guess = Callable[[list[int]], list[int]]


def looked_up(text: list[int]) -> list[int]:
    return NgramIndex(text).propose(K)


def predicted(text: list[int]) -> list[int]:
    tracker = PredictedOutput([0, 0, 1, 2, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 2, 1, 2, 2, 0, 1] * 2)
    tracker.extend(text[1:])
    return tracker.propose(K)


def continued(guess: Guess, generator: torch.Generator, *, miss_from_p: bool = False) -> list[int]:
    """A text of LENGTH tokens behind a first 0, written in rounds of speculation."""
    text = [0]
    while len(text) <= LENGTH:
        guessed = guess(text)
        laws = TABLE[torch.tensor([text[-1], *guessed])][None]
        hot = torch.eye(3)[torch.tensor(guessed, dtype=torch.long)][None]
        uniforms = torch.rand(1, len(guessed) + 1, generator=generator, dtype=torch.float64)
        drafted = torch.tensor([guessed], dtype=torch.long)
        limit = torch.tensor([len(guessed)])
        verdict = accept_sampled(drafted, hot, laws, uniforms[:, :-1], uniforms[:, -1], limit)
        accepted = int(verdict.accepted)
        last = draw(laws[:, accepted], uniforms[:, -1]) if miss_from_p else verdict.last
        text += [*guessed[:accepted], int(last)]
    return text[: LENGTH + 1]


def worst_chi_square(texts: list[list[int]]) -> float:
    """Pearson's statistic of what followed each token, against the target's law: the largest of three."""
    counts = torch.zeros(3, 3, dtype=torch.float64)
    for text in texts:
        for before, after in pairwise(text):
            counts[before, after] += 1
    expected: Tensor = TABLE.double() * counts.sum(dim=1, keepdim=True)
    return float(((counts - expected) ** 2 / expected).sum(dim=1).max())


@pytest.mark.parametrize("guess", [looked_up, predicted])
def test_every_token_follows_the_target(guess: Guess) -> None:
    """Though what is guessed depends on all that was said before."""
    generator = torch.Generator().manual_seed(11)
    texts = [continued(guess, generator) for _ in range(ROWS)]
    assert worst_chi_square(texts) < LIMIT_2_DEGREES


@pytest.mark.parametrize("guess", [looked_up, predicted])
def test_a_miss_redrawn_from_the_whole_law_goes_red(guess: Guess) -> None:
    """It would give the rejected token a second chance."""
    generator = torch.Generator().manual_seed(11)
    texts = [continued(guess, generator, miss_from_p=True) for _ in range(ROWS)]
    assert worst_chi_square(texts) > 2 * LIMIT_2_DEGREES


@pytest.mark.parametrize("token", range(3))
def test_one_round_per_proposed_token(token: int) -> None:
    """A one-hot q is accepted with probability p(x), and the miss is drawn from the others."""
    rows, p = 20_000, TABLE[0]
    uniforms = torch.rand(rows, 2, generator=torch.Generator().manual_seed(token), dtype=torch.float64)
    drafted, limits = torch.full((rows, 1), token), torch.ones(rows, dtype=torch.long)
    hot = torch.eye(3)[token].expand(rows, 1, -1)
    verdict = accept_sampled(drafted, hot, p.expand(rows, 2, -1), uniforms[:, :1], uniforms[:, 1], limits)
    first = torch.where(verdict.accepted > 0, token, verdict.last)
    counts = torch.bincount(first, minlength=3).double()
    assert float(((counts - p * rows) ** 2 / (p * rows)).sum()) < LIMIT_2_DEGREES
    assert int((verdict.last[verdict.accepted == 0] == token).sum()) == 0
