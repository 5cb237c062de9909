"""Losses against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from redraft_trainer.losses import LOSSES, Targets, bucket_law, forward_kl
from torch import Tensor

# Vocabulary of 4: the draft's law q, and the target's law p, of which two tokens (2 and 0) are logged.
Q = (0.4, 0.3, 0.2, 0.1)
P = {2: 0.5, 0: 0.3}
TAIL = 0.2
"""q at the buckets (2, 0, tail) is (0.2, 0.4, 0.4); p is (0.5, 0.3, 0.2)."""


def logits(law: tuple[float, ...] = Q) -> Tensor:
    # A shift is no part of a law.
    return torch.tensor([law]).log() + 3.0


def targets(token: int = 2) -> Targets:
    ids, probs = torch.tensor([list(P)]), torch.tensor([list(P.values())])
    return Targets(
        torch.tensor([token]), ids, probs, torch.tensor([TAIL]), torch.ones(1, 2, dtype=torch.bool)
    )


BY_HAND = {
    "forward_kl": 0.5 * math.log(0.5 / 0.2) + 0.3 * math.log(0.3 / 0.4) + 0.2 * math.log(0.2 / 0.4),
    "reverse_kl": 0.2 * math.log(0.2 / 0.5) + 0.4 * math.log(0.4 / 0.3) + 0.4 * math.log(0.4 / 0.2),
    "jsd": 0.5 * (0.5 * math.log(0.5 / 0.35) + 0.3 * math.log(0.3 / 0.35) + 0.2 * math.log(0.2 / 0.3))
    + 0.5 * (0.2 * math.log(0.2 / 0.35) + 0.4 * math.log(0.4 / 0.35) + 0.4 * math.log(0.4 / 0.3)),
    "total_variation": 0.5 * (0.3 + 0.1 + 0.2),
    "cross_entropy": -math.log(0.2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_by_hand(name: str) -> None:
    assert LOSSES[name](logits(), targets(), 4).item() == pytest.approx(BY_HAND[name], abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_without_a_token_count_for_nothing(name: str) -> None:
    padded = torch.cat([logits(), torch.full((1, 3), 50.0)], dim=1)
    assert LOSSES[name](padded, targets(), 4).item() == pytest.approx(BY_HAND[name], abs=1e-6)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"cross_entropy"}))
def test_equal_laws_cost_nothing(name: str) -> None:
    same = torch.tensor([[0.3, 0.15, 0.5, 0.05]]).log()
    assert LOSSES[name](same, targets(), 4).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_fewer_logged_tokens_than_the_widest_position(name: str) -> None:
    one = targets()
    wide = Targets(
        one.token_N,
        torch.tensor([[2, 0, 2, 2]]),
        torch.tensor([[0.5, 0.3, 0.0, 0.0]]),
        one.tail_N,
        torch.tensor([[True, True, False, False]]),
    )
    assert LOSSES[name](logits(), wide, 4).item() == pytest.approx(BY_HAND[name], abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("confident", [0, 2])
def test_gradients_stay_finite_at_the_edges(name: str, confident: int) -> None:
    """A draft that is sure of one token, and a target with probabilities of 0 and no tail."""
    raw = torch.full((1, 4), -80.0)
    raw[0, confident] = 80.0
    raw.requires_grad_()
    edge = Targets(
        torch.tensor([2]),
        torch.tensor([[2, 0]]),
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([0.0]),
        torch.ones(1, 2, dtype=torch.bool),
    )
    loss = LOSSES[name](raw, edge, 4).sum()
    loss.backward()
    assert loss.isfinite()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()


def test_forward_kl_gradient_is_q_minus_p_when_all_is_logged() -> None:
    raw = logits().requires_grad_()
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    everything = Targets(
        torch.tensor([0]), torch.arange(4)[None], p, torch.tensor([0.0]), torch.ones(1, 4, dtype=torch.bool)
    )
    forward_kl(raw, everything, 4).sum().backward()
    assert raw.grad is not None
    assert torch.allclose(raw.grad, torch.tensor([Q]) - p, atol=1e-5)


def test_tail_is_what_the_logged_tokens_leave() -> None:
    log_q, log_tail = bucket_law(logits(), targets(), 4)
    assert log_q.exp().tolist()[0] == pytest.approx([0.2, 0.4], abs=1e-6)
    assert log_tail.exp().item() == pytest.approx(0.4, abs=1e-6)
