"""The laws that serving draws from and the trainer measures under, on numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from redraft_models.laws import law_settings, overlap, process, real_rows, restrict, spread
from redraft_models.toy import TABLE_P, TABLE_Q

LOGITS_P, LOGITS_Q = torch.tensor([TABLE_P]).log(), torch.tensor([TABLE_Q]).log()


def law(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    return process(logits, law_settings([(temperature, top_k, top_p, min_p)] * len(logits)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.60),
        ({"temperature": 0.5}, 0.2986),
        ({"top_k": 3}, 0.4575),
        ({"temperature": 0.0}, 0.0),
    ],
)
def test_the_table_pair_overlaps_as_computed_by_hand(settings: dict[str, float], expected: float) -> None:
    p, q = law(LOGITS_P, **settings), law(LOGITS_Q, **settings)
    assert float(overlap(p, q)) == pytest.approx(expected, abs=5e-5)


def test_a_draft_that_is_not_warped_overlaps_otherwise() -> None:
    """The wrong variant of the figures above: the draft's law is left at temperature 1."""
    assert float(overlap(law(LOGITS_P, 0.5), law(LOGITS_Q))) == pytest.approx(0.4115, abs=5e-5)
    assert float(overlap(law(LOGITS_P), law(LOGITS_Q, 0.0))) == pytest.approx(0.20, abs=1e-6)


def test_top_k_leaves_the_k_best_and_rescales() -> None:
    expected = [0.50 / 0.85, 0.20 / 0.85, 0.15 / 0.85, 0.0, 0.0]
    assert law(LOGITS_P, top_k=3)[0].tolist() == pytest.approx(expected)
    assert law(LOGITS_P, top_k=99)[0].tolist() == pytest.approx(TABLE_P)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.01, 1), (0.49, 1), (0.51, 2), (0.69, 2), (0.71, 3), (0.999, 5), (1.0, 5)],
)
def test_top_p_keeps_the_token_that_crosses_it(top_p: float, kept: int) -> None:
    """The nucleus is the smallest set of best tokens whose mass reaches top_p (Holtzman et al. 2020)."""
    result = law(LOGITS_P, top_p=top_p)[0]
    assert int((result > 0).sum()) == kept
    assert float(result.sum()) == pytest.approx(1.0)


def test_top_p_works_on_what_top_k_left() -> None:
    """After top_k=3 the best has 0.588: it alone reaches 0.55, which it would not at its raw 0.50."""
    assert int((law(LOGITS_P, top_k=3, top_p=0.55)[0] > 0).sum()) == 1
    assert int((law(LOGITS_P, top_p=0.55)[0] > 0).sum()) == 2


def test_min_p_is_relative_to_the_best() -> None:
    assert law(LOGITS_P, min_p=0.35)[0].tolist() == pytest.approx([0.5 / 0.7, 0.2 / 0.7, 0, 0, 0])
    assert law(LOGITS_P, min_p=1.0)[0].tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5])
def test_tiny_temperatures_are_greedy_and_finite(temperature: float) -> None:
    logits = torch.tensor([[1e4, -1e4, 3.0], [-5.0, 7.0, 7.0]])
    assert law(logits, temperature).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_ties_at_the_kth_value_go_to_the_lowest_id() -> None:
    tied = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert law(tied, top_k=2)[0].tolist() == pytest.approx([0, 0.5, 0.5, 0, 0])


def test_rows_keep_their_own_settings() -> None:
    settings = law_settings([(0.0, 0, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (0.5, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.35)])
    together = process(LOGITS_P.repeat(4, 1), settings)
    alone = [
        law(LOGITS_P, 0.0),
        law(LOGITS_P, top_k=3),
        law(LOGITS_P, 0.5),
        law(LOGITS_P, min_p=0.35),
    ]
    torch.testing.assert_close(together, torch.cat(alone))


def test_padded_rows_are_not_in_a_law() -> None:
    padded = torch.cat([LOGITS_P, torch.full((1, 3), 5.0)], dim=-1)
    cut = real_rows(padded, 5)
    assert cut.shape == (1, 5)
    torch.testing.assert_close(process(cut, law_settings([(1.0, 0, 1.0, 0.0)])), torch.tensor([TABLE_P]))
    assert padded[0, 5] == 5.0, "the input is left alone"


def test_laws_of_half_precision_logits_are_float32() -> None:
    result = law(LOGITS_P.to(torch.bfloat16), top_p=0.9)
    assert result.dtype == torch.float32
    assert float(result.sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_law_overlaps_itself_fully() -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)) * 4
    p = law(logits, temperature=0.8, top_k=20, top_p=0.9)
    torch.testing.assert_close(overlap(p, p), torch.ones(64))


HEAD = torch.tensor([0, 2, 3, 7], dtype=torch.int32)


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 2}, {"top_k": 6, "min_p": 0.2}],
)
def test_the_law_of_a_trimmed_head_is_that_of_its_own_logits(settings: dict[str, float]) -> None:
    """What serving computes on four rows is what the trainer measures on eight, ties included."""
    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    logits[0, [2, 3]] = 5.0  # a tie that the lowest id wins in both
    served = spread(law(logits[:, HEAD], **settings), HEAD, 8)
    measured = law(restrict(logits, HEAD), **settings)
    assert torch.allclose(served, measured, atol=1e-7)
    assert torch.allclose(measured.sum(-1), torch.ones(6))
    assert float(measured[:, [1, 4, 5, 6]].sum()) == 0.0


def test_a_head_in_another_order_breaks_ties_otherwise() -> None:
    """The wrong variant: why the ids of a head have to rise."""
    logits = torch.tensor([[0.0, 1.0, 1.0]])
    falling = torch.tensor([2, 1], dtype=torch.int32)
    served = spread(law(logits[:, falling], 0.0), falling, 3)
    assert served.argmax() == 2
    assert law(restrict(logits, falling.flip(0)), 0.0).argmax() == 1


def test_a_full_head_restricts_nothing() -> None:
    assert restrict(LOGITS_Q, None) is LOGITS_Q
    every = torch.arange(LOGITS_Q.shape[-1], dtype=torch.int32)
    assert torch.equal(restrict(LOGITS_Q, every), LOGITS_Q)
    assert not torch.equal(restrict(LOGITS_Q, every[1:]), LOGITS_Q)


@pytest.mark.parametrize(("head", "expected"), [([0, 1], 0.5077), ([0, 2], 0.65), ([4], 0.05)])
def test_what_a_trimmed_head_leaves_out_is_lost(head: list[int], expected: float) -> None:
    """By hand: q = (0.20, 0.45) / 0.65 on the first two words, so min(0.50, 0.3077) + min(0.20, 0.6923)."""
    ids = torch.tensor(head, dtype=torch.int32)
    assert float(overlap(law(LOGITS_P), law(restrict(LOGITS_Q, ids)))) == pytest.approx(expected, abs=5e-5)
