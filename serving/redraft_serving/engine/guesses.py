"""Proposals that need no model: known tokens, each with a one-hot law.

Legend: B rows, K tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from redraft_serving.engine.proposer import Proposal
from redraft_serving.engine.rows import Row


def add_guesses(
    proposal: Proposal, guesses: Mapping[int, Sequence[int]], rows: Sequence[Row], vocab_size: int
) -> None:
    """Put guessed tokens, by place in the batch, beside what the draft model proposes for other rows."""
    if not guesses:
        return
    proposal.limits = [len(guesses.get(b, ())) or limit for b, limit in enumerate(proposal.limits)]
    depth = max(max(proposal.limits), proposal.tokens.shape[1])
    device = proposal.tokens.device
    proposal.tokens = pad(proposal.tokens, (0, depth - proposal.tokens.shape[1]))
    for b, guess in guesses.items():
        proposal.tokens[b, : len(guess)] = torch.tensor(guess, device=device)
    if proposal.sound is not None:
        guessed = torch.tensor([len(guesses.get(b, ())) for b in range(len(rows))], device=device)
        proposal.sound = torch.where(guessed > 0, guessed, proposal.sound)
    proposal.laws = _laws(proposal, guesses, rows, depth, vocab_size)


def _laws(
    proposal: Proposal,
    guesses: Mapping[int, Sequence[int]],
    rows: Sequence[Row],
    depth: int,
    vocab_size: int,
) -> Tensor | None:
    """A guessed token is drawn from a one-hot: exactly that is the q which it is accepted against."""
    sampled = [b for b in guesses if rows[b].sampled]
    if proposal.laws is None and not sampled:
        return None
    laws = torch.zeros(len(rows), depth, vocab_size, device=proposal.tokens.device)
    if proposal.laws is not None:
        laws[:, : proposal.laws.shape[1]] = proposal.laws
    for b in sampled:
        count = len(guesses[b])
        laws[b, :count].scatter_(-1, proposal.tokens[b, :count, None], 1.0)
    return laws
