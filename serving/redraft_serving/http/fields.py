"""Fields that this server knows of but can't honour: refused by name where they would change the output.

Silence would be worse: a client that asks for JSON or tools and gets prose with 200 has no way to notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redraft_serving.http.errors import BadRequest

_FALSY: tuple[Any, ...] = (None, False, [], {}, "")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "thinking_token_budget": (),
    "best_of": (1,),
    "suffix": (),
    "echo": (),
    "use_beam_search": (),
    "length_penalty": (1, 1.0),
    "typical_p": (1, 1.0),
    "bad_words": (),
    "allowed_token_ids": (),
    "logits_processors": (),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "chat_template": (),
    "documents": (),
    "continue_final_message": (),
    "mm_processor_kwargs": (),
    "kv_transfer_params": (),
}
"""Field -> values, beside null and empty ones, that ask for nothing."""


def refuse_unsupported(extra: Mapping[str, Any] | None) -> None:
    """Raise BadRequest for the first field that would change the output and isn't supported."""
    for name, value in (extra or {}).items():
        if name in _NEUTRAL and value not in (*_FALSY, *_NEUTRAL[name]):
            raise BadRequest(
                f"{name} is not supported by this server; leave it out.", name, code="unsupported_parameter"
            )
