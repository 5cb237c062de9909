"""Toy pairs with known answers, for tests, the quick demo and a doctor's check: CPU, seconds, no download.

kind      target                                   draft
table     tokens are i.i.d. from p                 i.i.d. from q; acceptance is sum of min(p, q)
chain     a -> b -> c -> d -> <eos> -> z -> z ...  the same
random    a tiny random Llama, attention alive     the target's weights disturbed, or a stranger
learn     words of 8 classes, each class followed  mostly wrong, acceptance about 0.2 (greedy 0);
          by the next, with entropy                LoRA can teach it the rest in seconds

Every folder is a whole Hugging Face model: config, generation config, safetensors, tokenizer, chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor

from redraft_models.toy_laws import (
    CHAIN_WORDS,
    CHAIN_WORDS_WITHOUT_EOS,
    LEARN_WORDS,
    TABLE_P,
    TABLE_Q,
    chain_rows,
    learn_draft_rows,
    learn_rows,
    table_rows,
    uniform_rows,
)
from redraft_models.toy_random import write_random_models
from redraft_models.toy_table import write_table_model
from redraft_models.toy_tokenizer import EOS_ID, FIRST_WORD_ID, save_tokenizer

__all__ = [
    "EOS_ID",
    "FIRST_WORD_ID",
    "TABLE_P",
    "TABLE_Q",
    "Kind",
    "chain_rows",
    "learn_rows",
    "table_rows",
    "uniform_rows",
    "write_toy_pair",
]

Kind = Literal["table", "chain", "random", "learn"]
RANDOM_WORDS = tuple(f"w{i}" for i in range(61))


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
    draft_rows: Tensor | None = None,
    with_eos: bool = True,
    disturbance: float = 0.2,
    eos_probability: float = 0.0,
    max_positions: int = 4096,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Write a pair into `folder`/target and `folder`/draft; answers the two paths.

    p, q: word probabilities of the table pair (words w0, w1, ... on ids 3, 4, ...).
    padded_rows: rows of the vocabulary that no token has, whose logit is `padding_logit` (not for random).
    pad_is_eos: the tokenizer pads with its end token.
    draft_is_target: the draft is a copy of the target.
    draft_rows: a next-token table [V, V] for the draft, in place of its own (not for random).
    with_eos: False makes the chain run a..g and stay there.
    disturbance: relative noise on the weights of the random pair's draft; inf makes it a stranger.
    eos_probability: chance of an end at each position of the learn pair.
    """
    target, draft = folder / "target", folder / "draft"
    if kind == "random":
        words = RANDOM_WORDS
        distance = 0.0 if draft_is_target else disturbance
        write_random_models(target, draft, FIRST_WORD_ID + len(words), distance, max_positions, seed)
    else:
        words, target_rows, own_rows = _tables(kind, p, q, with_eos, eos_probability)
        rows = target_rows if draft_is_target else own_rows if draft_rows is None else draft_rows
        padding = (padded_rows, padding_logit)
        write_table_model(target, target_rows, padding, max_positions, seed)
        write_table_model(draft, rows, padding, max_positions, seed)
    for model in (target, draft):
        save_tokenizer(model, words, pad_is_eos=pad_is_eos)
    return target, draft


def _tables(
    kind: Kind, p: Sequence[float], q: Sequence[float], with_eos: bool, eos_probability: float
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Words, and the tables of target and draft."""
    if kind == "table":
        return tuple(f"w{i}" for i in range(len(p))), table_rows(p), table_rows(q)
    if kind == "chain":
        rows = chain_rows(with_eos)
        return (CHAIN_WORDS if with_eos else CHAIN_WORDS_WITHOUT_EOS), rows, rows
    rows = learn_rows(eos_probability)
    return LEARN_WORDS, rows, learn_draft_rows(rows)
