"""The word-level tokenizer of the toy pairs: one id per word, words parted by white space."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

UNKNOWN, EOS, PAD = "<unk>", "<eos>", "<pad>"
EOS_ID = 1
FIRST_WORD_ID = 3
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
"""The contents in a row: any words are a prompt, so that a chat has the table's own law."""


def build_tokenizer(words: tuple[str, ...], *, pad_is_eos: bool = False) -> PreTrainedTokenizerFast:
    """<unk> 0, <eos> 1, <pad> 2, then the words; no BOS. `pad_is_eos` pads with <eos>, as many models do."""
    vocabulary = {token: i for i, token in enumerate((UNKNOWN, EOS, PAD, *words))}
    backend = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens([UNKNOWN, EOS, PAD])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNKNOWN,
        eos_token=EOS,
        pad_token=EOS if pad_is_eos else PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(folder: Path, words: tuple[str, ...], *, pad_is_eos: bool = False) -> None:
    """Save the tokenizer beside a model."""
    build_tokenizer(words, pad_is_eos=pad_is_eos).save_pretrained(folder)
