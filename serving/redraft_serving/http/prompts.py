"""From text, messages or token ids to a prompt that the engine can take. Bad prompts end here: 400."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from redraft_serving.http.errors import BadRequest
from redraft_serving.http.schemas import ChatBody, CompletionBody, Message, encodable
from redraft_serving.http.served import ServedModel

_INLINE_CHARACTERS = 20_000
"""Longer texts are tokenized in a thread, so that other streams go on meanwhile."""


class PromptReader:
    """Tokenizes and checks prompts.

    It has a tokenizer of its own (`tokenizer`): the engine decodes with the other one on its thread, and Rust
    tokenizers refuse some calls while another thread is inside.
    """

    def __init__(self, model: ServedModel, max_prompt_tokens: int | None = None) -> None:
        self.tokenizer = copy.deepcopy(model.tokenizer)
        self._max_prompt_tokens = max_prompt_tokens
        self._vocab_size = model.vocab_size
        self._max_model_len = model.max_model_len
        self._lock = threading.Lock()

    async def completion(self, body: CompletionBody) -> list[tuple[int, ...]]:
        """Token ids of each prompt."""
        if body.prompt and isinstance(body.prompt[0], str):
            special = body.add_special_tokens is not False
            found = [await self.encode(str(text), special) for text in body.prompt]
        else:
            found = [tuple(ids) for ids in body.prompt if not isinstance(ids, str)]
        return [self.checked(ids, "prompt") for ids in found]

    async def chat(self, body: ChatBody) -> tuple[int, ...]:
        """Token ids of a conversation under the model's chat template."""
        text = self.render(body.messages, body.add_generation_prompt is not False, body.chat_template_kwargs)
        return self.checked(await self.encode(text, bool(body.add_special_tokens)), "messages")

    async def prediction(self, text: str | None) -> tuple[int, ...]:
        """Token ids of a predicted answer. Raises BadRequest where no answer could be as long."""
        ids = await self.encode(text, False) if text else ()
        if len(ids) > self._max_model_len:
            raise BadRequest(
                f"The prediction has {len(ids)} tokens, more than the {self._max_model_len} tokens of this "
                "model; shorten it or leave it out.",
                "prediction",
                code="context_length_exceeded",
            )
        return ids

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """A conversation as the text that the chat template makes of it."""
        if self.tokenizer.chat_template is None:
            raise BadRequest("The model has no chat template; use /v1/completions.", "messages")
        turns = [_turn(message) for message in messages]
        given = dict(template_kwargs or {})
        reserved = {"tokenize", "chat_template", "conversation", "add_generation_prompt"} & set(given)
        if reserved:
            raise BadRequest(f"chat_template_kwargs may not hold {min(reserved)}.", "chat_template_kwargs")
        try:
            # No lock: templates are Python's own, and another thread may be tokenizing for seconds.
            text = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=add_generation_prompt, **given
            )
            return encodable(str(text))
        except (TemplateError, ValueError, TypeError, RecursionError) as error:
            raise BadRequest(_refusal(error), "messages") from error

    async def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of a text. The loop never waits for a lock, and gets a turn before each text."""
        await asyncio.sleep(0)
        if len(text) <= _INLINE_CHARACTERS and self._lock.acquire(blocking=False):
            try:
                return self._encode(text, add_special_tokens)
            finally:
                self._lock.release()
        return await asyncio.to_thread(self._encode_alone, text, add_special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included. Raises BadRequest for an id without a token."""
        self._check_ids(ids, "tokens")
        with self._lock:
            return str(self.tokenizer.decode(list(ids)))

    def strings(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens(list(ids))]

    def checked(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """The ids, if there are some, all have tokens, and leave room for an answer. Raises BadRequest."""
        if not ids:
            raise BadRequest(f"{param}: the prompt has no tokens; send at least one.", param)
        self._check_ids(ids, param)
        if self._max_prompt_tokens is not None and len(ids) > self._max_prompt_tokens:
            raise BadRequest(
                f"The prompt has {len(ids)} tokens; this server takes at most {self._max_prompt_tokens}.",
                param,
                code="context_length_exceeded",
            )
        if len(ids) >= self._max_model_len:
            raise BadRequest(
                f"The prompt has {len(ids)} tokens, which leaves no room for an answer within the "
                f"{self._max_model_len} tokens of this model; shorten it.",
                param,
                code="context_length_exceeded",
            )
        return tuple(ids)

    def max_tokens(self, prompt_length: int, asked: int | None, param: str) -> int:
        """Tokens that an answer may have; all that is left of the window where none are asked for."""
        room = self._max_model_len - prompt_length
        if asked is not None and asked > room:
            raise BadRequest(
                f"The prompt has {prompt_length} tokens and {param} is {asked}, together more than the "
                f"{self._max_model_len} tokens of this model; ask for at most {room}.",
                param,
                code="context_length_exceeded",
            )
        return room if asked is None else asked

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        wrong = next((one for one in ids if not 0 <= one < self._vocab_size), None)
        if wrong is not None:
            raise BadRequest(
                f"{param}: there is no token {wrong}; ids are 0 to {self._vocab_size - 1}.", param
            )

    def _encode_alone(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        with self._lock:
            return self._encode(text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        ids = self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return tuple(int(one) for one in ids)


def _refusal(error: Exception) -> str:
    """A template's own words, where it has some: those of Python or Jinja would tell of our insides."""
    if type(error) is TemplateError:
        return f"The model's chat template refuses these messages: {error}."
    return "The model's chat template can't be filled with these messages and chat_template_kwargs."


def _turn(message: Message) -> dict[str, str]:
    # Templates know the older name of the developer's role.
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": message.content}
    return turn if message.name is None else {**turn, "name": message.name}
