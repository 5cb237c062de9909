"""Toy pairs with known answers, for tests, the quick demo and a doctor's check: CPU, seconds, no download.

kind      target                                   draft
table     tokens are i.i.d. from p                 i.i.d. from q; acceptance is sum of min(p, q)
chain     a -> b -> c -> d -> <eos> -> z -> z ...  the same (or a table of its own)
random    a tiny random Llama, attention alive     the target's weights disturbed (or a stranger)
learn     words of 8 classes, each class followed  mostly wrong, acceptance about 0.2 (greedy 0);
          by the next, with entropy                LoRA can teach it the rest in seconds

Every folder is a whole Hugging Face model: config, generation config, safetensors, tokenizer, chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from redraft_models.toy_random import write_random_models
from redraft_models.toy_table import write_table_model
from redraft_models.toy_tokenizer import EOS_ID, FIRST_WORD_ID, save_tokenizer

Kind = Literal["table", "chain", "random", "learn"]
TABLE_P = (0.50, 0.20, 0.15, 0.10, 0.05)
TABLE_Q = (0.20, 0.45, 0.05, 0.25, 0.05)
CHAIN_WORDS = ("a", "b", "c", "d", "z")
CHAIN_WORDS_WITHOUT_EOS = ("a", "b", "c", "d", "e", "f", "g", "z")
LEARN_CLASSES, LEARN_WORDS_PER_CLASS = 8, 8
LEARN_MIXTURE = (0.15, 0.35, 0.50)
"""What the learn pair's draft starts from: the target's law, that law for a wrong class, all words alike."""


def write_toy_pair(
    folder: Path,
    kind: Kind,
    *,
    p: Sequence[float] = TABLE_P,
    q: Sequence[float] = TABLE_Q,
    padded_rows: int = 0,
    padding_logit: float = 5.0,
    pad_is_eos: bool = False,
    draft_is_target: bool = False,
    with_eos: bool = True,
    disturbance: float = 0.2,
    eos_probability: float = 0.0,
    max_positions: int = 4096,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Write a pair into `folder`/target and `folder`/draft; answers the two paths.

    p, q: word probabilities of the table pair (words w0, w1, ... on ids 3, 4, ...). padded_rows: rows of the
    vocabulary that no token has, whose logit is `padding_logit`. pad_is_eos: the tokenizer pads with its end
    token. draft_is_target: the draft is a copy. with_eos: False makes the chain run a..g and stay there.
    disturbance: how far the random pair's draft is from its target (relative noise on every weight; inf = a
    stranger). eos_probability: chance of an end at each position of the learn pair.
    """
    target, draft = folder / "target", folder / "draft"
    if kind == "random":
        words = tuple(f"w{i}" for i in range(61))
        distance = 0.0 if draft_is_target else disturbance
        write_random_models(target, draft, len(words) + FIRST_WORD_ID, distance, max_positions, seed)
    else:
        words, target_rows, draft_rows = _tables(kind, p, q, with_eos, eos_probability)
        padding = (padded_rows, padding_logit)
        write_table_model(target, target_rows, padding, max_positions, seed)
        write_table_model(draft, target_rows if draft_is_target else draft_rows, padding, max_positions, seed)
    for model in (target, draft):
        save_tokenizer(model, words, pad_is_eos=pad_is_eos)
    return target, draft


def _tables(
    kind: Kind, p: Sequence[float], q: Sequence[float], with_eos: bool, eos_probability: float
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Words, and the next-token tables [V, V] of target and draft: row = present token, column = next."""
    if kind == "table":
        return tuple(f"w{i}" for i in range(len(p))), _same_rows(p), _same_rows(q)
    if kind == "chain":
        chain: tuple[str, ...] = CHAIN_WORDS if with_eos else CHAIN_WORDS_WITHOUT_EOS
        rows = _chain_rows(chain, with_eos)
        return chain, rows, rows
    words = tuple(f"{'abcdefgh'[i % LEARN_CLASSES]}{i // LEARN_CLASSES}" for i in range(64))
    rows = learn_rows(eos_probability)
    known, wrong, uniform = LEARN_MIXTURE
    shifted = torch.cat([rows[:FIRST_WORD_ID], rows[FIRST_WORD_ID:].roll(LEARN_CLASSES // 2, 0)])
    return words, rows, known * rows + wrong * shifted + uniform * _uniform_words(len(rows))


def _same_rows(law: Sequence[float]) -> Tensor:
    row = torch.tensor([0.0] * FIRST_WORD_ID + list(law), dtype=torch.float64)
    return row.repeat(len(row), 1)


def _chain_rows(words: tuple[str, ...], with_eos: bool) -> Tensor:
    """Almost one-hot rows: each word is followed by the next, d by <eos>; z (or g) by itself."""
    size = FIRST_WORD_ID + len(words)
    last = size - 1
    following = [last] * FIRST_WORD_ID + [min(i + 1, last) for i in range(FIRST_WORD_ID, size)]
    if with_eos:
        following[last - 1] = EOS_ID
    else:
        following[last - 1] = last - 1
    return torch.nn.functional.one_hot(torch.tensor(following), size).to(torch.float64)


def learn_rows(eos_probability: float = 0.0) -> Tensor:
    """The learn pair's target table [67, 67]: a word of class c is followed by one of class c+1 (mod 8).

    Inside the class the chances halve from word to word (temperature matters), and the favourite differs by
    class. Special tokens are followed as if they were of the last class.
    """
    size = FIRST_WORD_ID + LEARN_CLASSES * LEARN_WORDS_PER_CLASS
    chances = torch.tensor([2.0**-i for i in range(LEARN_WORDS_PER_CLASS)], dtype=torch.float64)
    rows = torch.zeros(size, size, dtype=torch.float64)
    for token in range(size):
        following = (token - FIRST_WORD_ID + 1) % LEARN_CLASSES if token >= FIRST_WORD_ID else 0
        for rank in range(LEARN_WORDS_PER_CLASS):
            word = (rank + 3 * following) % LEARN_WORDS_PER_CLASS
            rows[token, FIRST_WORD_ID + LEARN_CLASSES * word + following] = chances[rank] / chances.sum()
    rows *= 1 - eos_probability
    rows[:, EOS_ID] += eos_probability
    return rows


def _uniform_words(size: int) -> Tensor:
    rows = torch.zeros(size, size, dtype=torch.float64)
    rows[:, FIRST_WORD_ID:] = 1 / (size - FIRST_WORD_ID)
    return rows
