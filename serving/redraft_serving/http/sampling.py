"""From a request body to the engine's parameters, with the checks that need the model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from redraft_serving.engine.interface import Engine, GenerationRequest, SamplingParams
from redraft_serving.http.admission import Admission
from redraft_serving.http.context import Context
from redraft_serving.http.errors import BadRequest
from redraft_serving.http.schemas import ChatBody, CompletionBody, GenerationBody
from redraft_serving.policy.types import Setting

_LEAST_TOP_P = 1e-9
"""top_p 0 means the best token alone; a law cut at exactly 0 would keep nothing."""
_MOST_BIAS = 100.0


def requests_of(
    body: GenerationBody,
    context: Context,
    request_id: str,
    admission: Admission,
    prompts: Sequence[tuple[int, ...]],
    prediction: tuple[int, ...] = (),
) -> list[GenerationRequest]:
    """One GenerationRequest per choice: prompt after prompt, n of each. Raises BadRequest."""
    n = body.n or 1
    asked, param = _asked_tokens(body)
    minimum = body.min_tokens or 0
    limits = [context.prompts.max_tokens(len(prompt), asked, param) for prompt in prompts]
    if any(minimum > limit for limit in limits):
        raise BadRequest(
            f"min_tokens is {minimum}, more than the {min(limits)} that may be given.", "min_tokens"
        )
    shared, sampling = _shared(body, context, admission), sampling_of(body, context.model.vocab_size)
    return [
        GenerationRequest(
            request_id=request_id,
            choice=index * n + choice,
            prompt_ids=prompt,
            max_tokens=limit,
            sampling=_own_seed(sampling, choice),
            prediction_ids=prediction,
            **shared,  # type: ignore[arg-type]
        )
        for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        for choice in range(n)
    ]


def sampling_of(body: GenerationBody, vocab_size: int) -> SamplingParams:
    """The sampling settings of a request's first choice. top_k -1 and 0 both mean all tokens."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else max(body.top_p, _LEAST_TOP_P),
        top_k=min(max(body.top_k or 0, 0), vocab_size),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
        seed=body.seed,
    )


def _own_seed(sampling: SamplingParams, choice: int) -> SamplingParams:
    return sampling if sampling.seed is None else replace(sampling, seed=choice_seed(sampling.seed, choice))


def choice_seed(seed: int, choice: int) -> int:
    """Seed of one of n choices: the first has the request's own, the others differ from it and each other."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{choice}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _shared(body: GenerationBody, context: Context, admission: Admission) -> dict[str, object]:
    """What all choices of a request have in common."""
    return {
        "domain": admission.domain,
        "arm": admission.arm,
        "user": admission.user,
        "stop": tuple(body.stop or ()),
        "stop_token_ids": _stop_ids(body.stop_token_ids or [], context.model.vocab_size),
        "ignore_eos": bool(body.ignore_eos),
        "min_tokens": body.min_tokens or 0,
        "include_stop_str_in_output": bool(body.include_stop_str_in_output),
        "skip_special_tokens": body.skip_special_tokens is not False,
        "top_logprobs": _top_logprobs(body, context.settings.max_logprobs, context.model.vocab_size),
        "capture": admission.capture,
        "num_speculative_tokens": _speculative_tokens(body.num_speculative_tokens, context.engine),
    }


def _asked_tokens(body: GenerationBody) -> tuple[int | None, str]:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens, "max_completion_tokens"
    if isinstance(body, CompletionBody) and body.max_tokens is None:
        return 16, "max_tokens"
    return body.max_tokens, "max_tokens"


def _logit_bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    found = {}
    for key, value in bias.items():
        # int() takes "１" and "1_0" as well, which are no ids.
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
        if not 0 <= token < vocab_size:
            raise BadRequest(
                f"logit_bias: there is no token {key!r:.40}; ids are 0 to {vocab_size - 1}.", "logit_bias"
            )
        if not -_MOST_BIAS <= value <= _MOST_BIAS:
            raise BadRequest(
                f"logit_bias of token {key} is {value:g}; it must be within -100 and 100.", "logit_bias"
            )
        found[token] = value
    return found


def _stop_ids(ids: list[int], vocab_size: int) -> frozenset[int]:
    wrong = next((one for one in ids if not 0 <= one < vocab_size), None)
    if wrong is not None:
        raise BadRequest(
            f"stop_token_ids: there is no token {wrong}; ids are 0 to {vocab_size - 1}.", "stop_token_ids"
        )
    return frozenset(ids)


def _top_logprobs(body: GenerationBody, most: int, vocab_size: int) -> int | None:
    """How many alternatives to report; None where no log-probabilities are asked for."""
    param = "logprobs"
    top: int | None = None
    if isinstance(body, CompletionBody):
        top = body.logprobs
    elif isinstance(body, ChatBody):
        param = "top_logprobs"
        if body.top_logprobs and not body.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
        top = (body.top_logprobs or 0) if body.logprobs else None
    if top is not None and top > most:
        raise BadRequest(f"{param} is {top}; this server reports at most {most} alternatives.", param)
    return None if top is None else min(top, vocab_size)


def _speculative_tokens(asked: Setting | None, engine: Engine) -> Setting | None:
    """What a request asks for, if the engine's caches have room for so many. Raises BadRequest."""
    if isinstance(asked, int) and asked > engine.max_speculative_tokens:
        raise BadRequest(
            f"num_speculative_tokens is {asked!r:.20}; this server proposes at most "
            f'{engine.max_speculative_tokens}. Send a number up to that, or "auto".',
            "num_speculative_tokens",
        )
    return asked
