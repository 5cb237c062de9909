"""The two shapes of an answer: chat and plain completion, whole and in pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from redraft_serving.engine.interface import Emission, TokenLogprob
from redraft_serving.http.generation import Output
from redraft_serving.http.logprobs import TokenTexts, chat_logprobs, completion_logprobs


class Face(ABC):
    """How the choices of one request are written down. One object per request: pieces have a memory."""

    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]
    opening: ClassVar[dict[str, Any] | None]
    """What a stream says of a choice before its first piece."""

    def __init__(self, texts: TokenTexts, *, logprobs: bool, token_ids: bool) -> None:
        self._texts = texts
        self._wants_logprobs = logprobs
        self._wants_ids = token_ids

    def piece(self, index: int, emission: Emission) -> dict[str, Any] | None:
        """One round of a choice in a stream; None where it has nothing to tell yet."""
        tells = (self._wants_logprobs or self._wants_ids) and emission.token_ids
        if not (emission.text or emission.finish_reason or tells):
            return None
        return self._choice(index, self._delta(emission.text), emission)

    def whole(self, index: int, output: Output) -> dict[str, Any]:
        """A finished choice."""
        return self._choice(index, self._full("".join(output.text)), output)

    def _choice(self, index: int, text: dict[str, Any], part: Emission | Output) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, **text, "logprobs": None}
        if self._wants_logprobs:
            choice["logprobs"] = self._logprobs(index, part.logprobs)
        choice |= {"finish_reason": part.finish_reason, "stop_reason": part.stop_reason}
        return {**choice, "token_ids": list(part.token_ids)} if self._wants_ids else choice

    @abstractmethod
    def _delta(self, text: str) -> dict[str, Any]:
        """A piece of text."""

    @abstractmethod
    def _full(self, text: str) -> dict[str, Any]:
        """The whole text."""

    @abstractmethod
    def _logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Log-probabilities of a part of a choice."""


class ChatFace(Face):
    """`chat.completion` and its chunks."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    opening: ClassVar[dict[str, Any] | None] = {
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _full(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        return chat_logprobs(self._texts, found)


class CompletionFace(Face):
    """`text_completion`, which names its chunks the same."""

    prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"
    opening = None

    def __init__(self, texts: TokenTexts, *, logprobs: bool, token_ids: bool) -> None:
        super().__init__(texts, logprobs=logprobs, token_ids=token_ids)
        self._offsets: dict[int, int] = {}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _full(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        body, self._offsets[index] = completion_logprobs(self._texts, found, self._offsets.get(index, 0))
        return body
