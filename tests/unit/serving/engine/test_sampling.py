"""The output law of one verification, by counting. False alarms: chi-square limits at 1e-4 each."""

from __future__ import annotations

import pytest
import torch
from redraft_models.laws import law_settings, process
from redraft_serving.engine.sampling import accept_matched, accept_sampled, draw, residual
from torch import Tensor

P = torch.tensor([0.50, 0.20, 0.15, 0.10, 0.05])
Q = torch.tensor([0.20, 0.45, 0.05, 0.25, 0.05])
ROWS = 20_000
LIMIT_4_DEGREES = 23.5
LIMIT_2_DEGREES = 18.4


def chi_square(tokens: Tensor, law: Tensor) -> float:
    """Pearson's statistic of drawn tokens against a law, over the tokens that it allows."""
    allowed = law > 0
    counts = torch.bincount(tokens, minlength=len(law)).double()
    assert int(counts[~allowed].sum()) == 0, "a token of probability 0 was drawn"
    expected = law.double() * len(tokens)
    return float(((counts - expected)[allowed] ** 2 / expected[allowed]).sum())


def first_tokens(
    p: Tensor, q: Tensor, drawn_from: Tensor, seed: int = 0, correct_from_p: bool = False
) -> Tensor:
    """The first emitted token of ROWS rounds with K = 1; `drawn_from` is what the draft really drew from."""
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(ROWS, 3, generator=generator, dtype=torch.float64)
    drafted = draw(drawn_from.expand(ROWS, -1), uniforms[:, 0])
    laws_p, laws_q = p.expand(ROWS, 2, -1), q.expand(ROWS, 1, -1)
    limits = torch.ones(ROWS, dtype=torch.long)
    verdict = accept_sampled(drafted[:, None], laws_q, laws_p, uniforms[:, 1:2], uniforms[:, 2], limits)
    correction = draw(p.expand(ROWS, -1), uniforms[:, 2]) if correct_from_p else verdict.last
    return torch.where(verdict.accepted > 0, drafted, correction)


def top3(law: Tensor) -> Tensor:
    return process(law.log()[None], law_settings([(1.0, 3, 1.0, 0.0)]))[0]


def test_emitted_tokens_follow_the_target() -> None:
    assert chi_square(first_tokens(P, Q, Q), P) < LIMIT_4_DEGREES
    assert chi_square(first_tokens(top3(P), top3(Q), top3(Q)), top3(P)) < LIMIT_2_DEGREES


def test_wrong_variants_go_red() -> None:
    best = torch.nn.functional.one_hot(Q.argmax(), 5).float()
    assert chi_square(first_tokens(P, Q, best), P) > 1000, "an argmax draft tested against its softmax"
    assert chi_square(first_tokens(P, Q, Q, correct_from_p=True), P) > 1000, "a miss redrawn from p"
    raw_under_top_k = first_tokens(top3(P), Q, top3(Q))
    assert chi_square(raw_under_top_k, top3(P)) > 100, "a top-k draft tested against its raw law"


def test_acceptance_is_the_overlap() -> None:
    """0.60 for the table pair; 20,000 draws have a standard deviation of 0.0035, so 0.015 is four of them."""
    generator = torch.Generator().manual_seed(1)
    uniforms = torch.rand(ROWS, 3, generator=generator, dtype=torch.float64)
    drafted = draw(Q.expand(ROWS, -1), uniforms[:, 0])[:, None]
    limits = torch.ones(ROWS, dtype=torch.long)
    verdict = accept_sampled(
        drafted, Q.expand(ROWS, 1, -1), P.expand(ROWS, 2, -1), uniforms[:, 1:2], uniforms[:, 2], limits
    )
    assert float(verdict.accepted.double().mean()) == pytest.approx(0.60, abs=0.015)


def test_equal_laws_accept_everything() -> None:
    """Also where the residual is all zero."""
    tokens = first_tokens(P, P, P)
    assert chi_square(tokens, P) < LIMIT_4_DEGREES
    assert torch.equal(residual(P[None], P[None]), P[None])


def test_draw_never_gives_an_impossible_token() -> None:
    law = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    edges = torch.tensor([0.0, 0.2999999, 0.3000001, 0.9999999999, 1.0 - 2**-53], dtype=torch.float64)
    assert draw(law.expand(5, -1), edges).tolist() == [1, 1, 3, 3, 3]


def test_a_limit_hides_what_stands_behind_it() -> None:
    """Padding tokens behind a row's limit are never accepted, even where they would match."""
    drafted = torch.tensor([[4, 4, 4], [4, 4, 4]])
    best = torch.tensor([[4, 4, 4, 4], [4, 4, 4, 4]])
    verdict = accept_matched(drafted, best, torch.tensor([3, 1]))
    assert verdict.accepted.tolist() == [3, 1]
    assert verdict.last.tolist() == [4, 4]


def test_greedy_rows_in_a_sampled_batch_are_exact() -> None:
    """One-hots through the sampled path: accepted iff equal, corrected to the target's token."""
    hot = torch.eye(5)
    drafted = torch.tensor([[2, 1]])
    p, q = hot[[2, 3, 0]][None], hot[[2, 1]][None]
    uniform = torch.full((1, 2), 0.999999, dtype=torch.float64)
    verdict = accept_sampled(drafted, q, p, uniform, uniform[:, 0], torch.tensor([2]))
    assert (verdict.accepted.item(), verdict.last.item()) == (1, 3)
