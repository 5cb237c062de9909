"""Request bodies: OpenAI's fields, vLLM's extensions, and `num_speculative_tokens`.

Types are strict (no "0.5" for a number), numbers finite. Unknown fields are accepted; `fields.py` refuses
those that would change the output.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from redraft_serving.policy.types import Setting

_INT64 = 2**63

PromptInput = str | list[str] | list[int] | list[list[int]]


def _stop_strings(value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
        raise ValueError("must be a string or a list of strings")
    if "" in strings:
        raise ValueError("holds an empty string, which would match everywhere; leave it out")
    return [encodable(one) for one in strings]


def encodable(text: str) -> str:
    """The text, if it can be encoded: JSON may smuggle in half a character. Raises ValueError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds a lone surrogate at character {error.start}, which is no text") from error
    return text


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompts(value: Any) -> list[str] | list[list[int]]:
    if isinstance(value, str):
        return [encodable(value)]
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value):
            return [encodable(one) for one in value]
        if all(_is_id(one) for one in value):
            return [value]
        if all(isinstance(one, list) and all(_is_id(item) for item in one) for one in value):
            return value
    if value == []:
        raise ValueError("is an empty list; send at least one token or one text")
    raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")


def _content(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return encodable(value)
    return "\n".join(_text_parts(value, ("text", "input_text")))


def _text_parts(value: Any, kinds: tuple[str, ...]) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in kinds:
            kind = f"of type {part.get('type')!r:.40}" if isinstance(part, dict) else "that is no object"
            raise ValueError(f"holds a part {kind}; this server takes text only")
        if not isinstance(part.get("text"), str):
            raise ValueError("holds a text part without text")
    return [encodable(part["text"]) for part in value]


def _prediction(value: Any) -> str | None:
    """The predicted text. Parts are joined without anything between: they are pieces of one answer."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") != "content" or "content" not in value:
        raise ValueError(f'must be {{"type": "content", "content": text or text parts}}; got {value!r:.80}')
    content = value["content"]
    return encodable(content) if isinstance(content, str) else "".join(_text_parts(content, ("text",)))


def _speculation(value: Any) -> Setting | None:
    if value is None or value == "auto" or (_is_id(value) and value >= 0):
        setting: Setting | None = value
        return setting
    raise ValueError(f'must be "auto", a whole number from 0 on, or null; got {value!r:.80}')


StopStrings = Annotated[list[str], PlainValidator(_stop_strings, json_schema_input_type=str | list[str])]
Prompts = Annotated[list[str] | list[list[int]], PlainValidator(_prompts, json_schema_input_type=PromptInput)]
Content = Annotated[str, PlainValidator(_content, json_schema_input_type=str | list[dict[str, str]] | None)]
Prediction = Annotated[str | None, PlainValidator(_prediction, json_schema_input_type=dict[str, Any] | None)]
SpeculationSetting = Annotated[
    Setting | None,
    PlainValidator(_speculation, json_schema_input_type=Literal["auto"] | Annotated[int, Field(ge=0)] | None),
]


class Body(BaseModel):
    """What every request body has in common."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationBody(Body):
    """Fields that chat and plain completions share."""

    model: str | None = None
    n: int | None = Field(1, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: StopStrings | None = None
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    min_tokens: int | None = Field(0, ge=0)
    include_stop_str_in_output: bool | None = False
    skip_special_tokens: bool | None = True
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = False
    store: bool | None = None
    """false: nothing of this request is kept for training."""
    user: str | None = Field(None, max_length=512)
    """Whose request it is. A hash of it is kept with the sample, so that a user's samples can be deleted."""
    num_speculative_tokens: SpeculationSetting = None
    """"auto": as the policy decides; a number: so many per round; 0: plain decoding for this request."""
    prediction: Prediction = None
    """What the answer is expected to be: where it is right, the answer comes faster; it never changes it."""


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    prompt: Prompts
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0)


class Message(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content = ""
    name: str | None = None


class ChatBody(GenerationBody):
    """Body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0)
    add_generation_prompt: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(Body):
    """Body of POST /tokenize: a text, or messages for the chat template."""

    model: str | None = None
    prompt: Content | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]
