"""Trimmed heads in training: what is counted, and that the loss is the one on the ids of the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from redraft_models.head import choose_head_ids
from redraft_trainer.data import Batch, build_example, collate
from redraft_trainer.heads import IdCounts, heldout_coverage, inside, places
from redraft_trainer.losses import LOSSES, forward_kl, total_variation

from .conftest import law_sample

V = 8
LAW = np.array([[0.0, 0.0, 0.0, 0.5, 0.2, 0.15, 0.1, 0.05]])
HEAD = torch.tensor([1, 3, 5, 7], dtype=torch.int32)
CPU = torch.device("cpu")


def batch(*tokens: int, top_k: int = V) -> Batch:
    rows = np.repeat(LAW, len(tokens), axis=0)
    return collate([build_example(law_sample(rows, [3, 4], tokens, top_k=top_k), 64)])


def test_tokens_and_likely_ids_are_counted() -> None:
    counts = IdCounts(V)
    counts.add(law_sample(LAW, [6, 6], [4], top_k=2))
    assert counts.weights() == pytest.approx({3: 0.5, 4: 1.2}, abs=1e-3)
    passed = list(counts.through([law_sample(LAW, [6], [4], top_k=1)]))
    assert len(passed) == 1
    assert counts.weights() == pytest.approx({3: 1.0, 4: 2.2}, abs=1e-3), "a prompt is no use of an id"


def test_an_id_that_no_token_has_stops_nothing() -> None:
    counts = IdCounts(5)
    counts.add(law_sample(LAW, [3], [7], top_k=3))
    assert set(counts.weights()) == {3, 4}


def test_coverage_is_the_share_of_the_targets_tokens() -> None:
    examples = [build_example(law_sample(np.repeat(LAW, 4, 0), [3], [3, 3, 4, 5]), 64)]
    assert heldout_coverage(examples, HEAD) == 0.75
    assert heldout_coverage(examples, None) == 1.0
    assert heldout_coverage([], HEAD) is None


def test_few_samples_and_their_law_cover_what_comes_later() -> None:
    """Zipf's law over 1,000 ids: 200 tokens with their law choose a better head than the tokens alone."""
    law = 1.0 / np.arange(1, 1001)
    law /= law.sum()
    generator = np.random.default_rng(0)
    # High ids are the frequent ones here, so filling up with the lowest helps neither.
    order = np.arange(1000)[::-1]
    tokens = order[generator.choice(1000, size=200, p=law)].tolist()
    rows = np.repeat(law[order][None], 200, 0)
    counts = IdCounts(1000)
    counts.add(law_sample(rows, [3], tokens, top_k=64))
    drawn = {token: tokens.count(token) for token in set(tokens)}
    covered = []
    for found in (counts.weights(), drawn):
        head = choose_head_ids(found, 1000, size=128)
        assert head is not None
        covered.append(float(law[order][head.ids.long().numpy()].sum()))
    assert covered[0] > covered[1]
    assert covered[0] > 0.6


def by_hand(logits: torch.Tensor) -> tuple[float, float]:
    """KL and total variation of the two laws on the head's ids alone."""
    ids = HEAD.long()
    p = torch.tensor(LAW[0], dtype=torch.float32)[ids]
    p, q = p / p.sum(), torch.softmax(logits[0, ids], -1)
    return float(torch.special.xlogy(p, p / q).sum()), float(0.5 * (p - q).abs().sum())


def test_the_loss_is_the_one_on_the_heads_ids() -> None:
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(0))
    within = inside(batch(5), places(HEAD, V, CPU)).targets
    trimmed = logits[:, HEAD]
    kl, variation = by_hand(logits)
    assert forward_kl(trimmed, within, len(HEAD)).item() == pytest.approx(kl, abs=1e-3)
    assert total_variation(trimmed, within, len(HEAD)).item() == pytest.approx(variation, abs=1e-3)
    # The wrong variant: the full head's loss, whose law gives probability to ids that are not scored.
    assert forward_kl(logits, batch(5).targets, V).item() != pytest.approx(kl, abs=1e-2)


def test_positions_whose_token_is_not_scored_are_left_out() -> None:
    whole = batch(5, 4, 7)
    within = inside(whole, places(HEAD, V, CPU))
    assert within.loss_index_N.tolist() == [whole.loss_index_N[0].item(), whole.loss_index_N[2].item()]
    assert within.targets.token_N.tolist() == [2, 3], "places in the head, not ids"
    assert len(within.row_N) == len(within.targets) == 2
    assert len(inside(batch(4, 6), places(HEAD, V, CPU)).targets) == 0


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_stays_finite_where_the_log_lies_outside(loss: str) -> None:
    """Only ids 3 and 4 are logged; under a head with neither, all that is left is the tail."""
    head = torch.tensor([1, 5, 7], dtype=torch.int32)
    within = inside(batch(5, 7, top_k=2), places(head, V, CPU)).targets
    assert not bool(within.valid_NK.any())
    assert torch.allclose(within.tail_N, torch.ones(2))
    logits = torch.randn(2, 3, requires_grad=True)
    value = LOSSES[loss](logits, within, 3).sum()
    value.backward()
    assert bool(value.isfinite())
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
