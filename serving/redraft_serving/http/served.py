"""What the HTTP face knows of the models behind an engine, and what its routes share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request
from transformers import PreTrainedTokenizerBase

from redraft_serving.engine.interface import Engine
from redraft_serving.http.domains import Domains
from redraft_serving.http.errors import ModelNotFound
from redraft_serving.settings import ServingSettings

if TYPE_CHECKING:
    from redraft_serving.http.latency import Latencies
    from redraft_serving.http.logprobs import TokenTexts
    from redraft_serving.http.prompts import PromptReader


@dataclass(frozen=True)
class ServedModel:
    """The model that clients name. `vocab_size` counts real tokens: ids from there on have no text."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    max_model_len: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    base_draft_fingerprint: str | None
    created: int = field(default_factory=lambda: int(time.time()))

    def check_name(self, asked: str | None) -> None:
        """Raise ModelNotFound where a request names another model. No name is ours."""
        if asked is not None and asked != self.name:
            raise ModelNotFound(asked, self.name)


@dataclass
class Context:
    """Shared by all routes of one application."""

    engine: Engine
    model: ServedModel
    settings: ServingSettings
    domains: Domains
    prompts: PromptReader
    texts: TokenTexts
    latencies: Latencies
    draining: bool = False
    """True once the worker is stopping: no new requests, /ready says 503."""


async def context_of(request: Request) -> Context:
    """The application's context."""
    return cast(Context, request.app.state.context)


ContextDep = Annotated[Context, Depends(context_of)]
