"""Log-probabilities in OpenAI's two forms, and the text and bytes of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from redraft_serving.engine.interface import TokenLogprob
from redraft_serving.text import REPLACEMENT

_LOWEST = -9999.0
"""OpenAI's stand-in for log 0, which JSON can't say."""


class TokenTexts:
    """Text and bytes of a token by itself. A part of a character has bytes, but no text of its own."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        """Texts by id: an answer with alternatives names the same tokens thousands of times."""

    def text(self, token_id: int) -> str:
        """The token's text; U+FFFD where it is a part of a character."""
        if token_id not in self._known:
            self._known[token_id] = str(self._tokenizer.decode([token_id]))
        return self._known[token_id]

    def bytes(self, token_id: int) -> list[int]:
        """The token's UTF-8 bytes; those of all tokens together give the text, split characters included."""
        text = self.text(token_id)
        if REPLACEMENT not in text:
            return list(text.encode())
        spelled = str(self._tokenizer.convert_ids_to_tokens(token_id))
        if spelled.startswith("<0x") and spelled.endswith(">"):
            return [int(spelled[3:-1], 16)]
        table = byte_alphabet()
        return (
            [table[one] for one in spelled] if all(one in table for one in spelled) else list(text.encode())
        )


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, as byte-level BPE vocabularies spell them."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def chat_logprobs(texts: TokenTexts, found: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": [_chat_entry(texts, one) for one in found], "refusal": None}


def _chat_entry(texts: TokenTexts, found: TokenLogprob) -> dict[str, Any]:
    entry = _token_entry(texts, found.token_id, found.logprob)
    return {**entry, "top_logprobs": [_token_entry(texts, token, logprob) for token, logprob in found.top]}


def _token_entry(texts: TokenTexts, token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": texts.text(token_id), "logprob": _finite(logprob), "bytes": texts.bytes(token_id)}


def completion_logprobs(
    texts: TokenTexts, found: Sequence[TokenLogprob], offset: int = 0
) -> tuple[dict[str, Any], int]:
    """The `logprobs` of a completion choice, whose text begins at `offset`; and the offset behind it."""
    tokens = [texts.text(one.token_id) for one in found]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    body = {
        "tokens": tokens,
        "token_logprobs": [_finite(one.logprob) for one in found],
        "top_logprobs": [_alternatives(texts, one) for one in found],
        "text_offset": offsets,
    }
    return body, offset


def _alternatives(texts: TokenTexts, found: TokenLogprob) -> dict[str, float]:
    """Token text -> log-probability, the emitted token among them. Equal texts keep the likelier one."""
    entries: dict[str, float] = {}
    for token, logprob in ((found.token_id, found.logprob), *found.top):
        text = texts.text(token)
        entries[text] = max(_finite(logprob), entries.get(text, _LOWEST))
    return entries


def _finite(logprob: float) -> float:
    return logprob if logprob > _LOWEST else _LOWEST
