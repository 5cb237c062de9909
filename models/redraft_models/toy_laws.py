"""Next-token tables of the toy models: [V, V] in float64, row = the present token, column = the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft_models.toy_tokenizer import EOS_ID, FIRST_WORD_ID

TABLE_P = (0.50, 0.20, 0.15, 0.10, 0.05)
TABLE_Q = (0.20, 0.45, 0.05, 0.25, 0.05)
CHAIN_WORDS = ("a", "b", "c", "d", "z")
CHAIN_WORDS_WITHOUT_EOS = ("a", "b", "c", "d", "e", "f", "g", "z")
LEARN_CLASSES, LEARN_WORDS_PER_CLASS = 8, 8
LEARN_WORDS = tuple(
    f"{'abcdefgh'[i % LEARN_CLASSES]}{i // LEARN_CLASSES}"
    for i in range(LEARN_CLASSES * LEARN_WORDS_PER_CLASS)
)
LEARN_MIXTURE = (0.15, 0.35, 0.50)
"""What the learn pair's draft starts from: the target's law, that law for a wrong class, all words alike."""


def table_rows(law: Sequence[float]) -> Tensor:
    """Every token is followed by word i with probability law[i]: tokens are i.i.d."""
    row = torch.tensor([0.0] * FIRST_WORD_ID + list(law), dtype=torch.float64)
    return row.repeat(len(row), 1)


def chain_rows(with_eos: bool = True) -> Tensor:
    """One-hot rows: a word is followed by the next; d by <eos> and then z for ever, or else g by itself."""
    size = FIRST_WORD_ID + len(CHAIN_WORDS if with_eos else CHAIN_WORDS_WITHOUT_EOS)
    last = size - 1
    following = [last] * FIRST_WORD_ID + [min(i + 1, last) for i in range(FIRST_WORD_ID, size)]
    following[last - 1] = EOS_ID if with_eos else last - 1
    return torch.nn.functional.one_hot(torch.tensor(following), size).to(torch.float64)


def uniform_rows(words: int, with_eos: bool = False) -> Tensor:
    """Every token is followed by each of the words (and <eos>) alike."""
    rows = table_rows([1.0] * words)
    rows[:, EOS_ID] = float(with_eos)
    return rows / rows.sum(-1, keepdim=True)


def learn_rows(eos_probability: float = 0.0) -> Tensor:
    """The learn pair's target: a word of class c is followed by one of class c+1 (mod 8).

    Inside the class the chances halve from word to word (temperature matters), and the favourite differs by
    class. After a special token comes class 0.
    """
    size = FIRST_WORD_ID + len(LEARN_WORDS)
    chances = torch.tensor([2.0**-i for i in range(LEARN_WORDS_PER_CLASS)], dtype=torch.float64)
    chances = chances / chances.sum() * (1 - eos_probability)
    rows = torch.zeros(size, size, dtype=torch.float64)
    rows[:, EOS_ID] = eos_probability
    for token in range(size):
        following = (token - FIRST_WORD_ID + 1) % LEARN_CLASSES if token >= FIRST_WORD_ID else 0
        for rank, chance in enumerate(chances.tolist()):
            word = (rank + 3 * following) % LEARN_WORDS_PER_CLASS
            rows[token, FIRST_WORD_ID + LEARN_CLASSES * word + following] = chance
    return rows


def learn_draft_rows(target_rows: Tensor) -> Tensor:
    """Where the learn pair's draft starts: mostly wrong; its greedy proposals are never the target's."""
    known, wrong, uniform = LEARN_MIXTURE
    words = target_rows[FIRST_WORD_ID:].roll(LEARN_CLASSES // 2, 0)
    special = target_rows[FIRST_WORD_ID + 3].repeat(FIRST_WORD_ID, 1)
    mislead = torch.cat([special, words])
    return known * target_rows + wrong * mislead + uniform * uniform_rows(len(LEARN_WORDS))
