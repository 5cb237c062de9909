"""How much one request may ask for: choices, prompts, stop strings, biases. Beyond it, 400 with the field."""

from __future__ import annotations

from redraft_serving.http.context import Context
from redraft_serving.http.errors import BadRequest
from redraft_serving.http.schemas import CompletionBody, GenerationBody
from redraft_serving.settings import ServingSettings


def check_amount(body: GenerationBody, context: Context) -> None:
    """How much a request asks for, before a prompt is read. Raises BadRequest."""
    _check_lists(body, context.settings)
    n, settings = body.n or 1, context.settings
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    if body.prediction and n * prompts > 1:
        # As at OpenAI, for n. What else it refuses beside a prediction (logprobs, penalties,
        # max_completion_tokens) is right here: accepting checks every token against its own law.
        raise BadRequest(
            f"prediction is of one answer, and this request asks for {n * prompts}; send it with n = 1 and "
            "one prompt.",
            "n" if n > 1 else "prompt",
        )
    if n > settings.max_n:
        raise BadRequest(f"n is {n}; this server gives at most {settings.max_n} choices.", "n")
    if prompts > settings.max_prompts:
        raise BadRequest(
            f"prompt holds {prompts} prompts; at most {settings.max_prompts} are taken.", "prompt"
        )
    places = settings.max_num_seqs + settings.max_waiting
    if n * prompts > places:
        raise BadRequest(
            f"{prompts} prompts with n = {n} are {n * prompts} choices, and this server has {places} places; "
            "send fewer at once.",
            "prompt" if prompts > 1 else "n",
        )


def _check_lists(body: GenerationBody, settings: ServingSettings) -> None:
    stops, bias = body.stop or [], body.logit_bias or {}
    if len(stops) > settings.max_stops:
        raise BadRequest(f"stop may hold at most {settings.max_stops} strings, and has {len(stops)}.", "stop")
    longest = max((len(one) for one in stops), default=0)
    if longest > settings.max_stop_characters:
        raise BadRequest(
            f"stop holds a string of {longest} characters; one may have {settings.max_stop_characters}.",
            "stop",
        )
    if len(bias) > settings.max_logit_bias:
        raise BadRequest(
            f"logit_bias names {len(bias)} tokens; at most {settings.max_logit_bias} are taken.", "logit_bias"
        )
