"""Settings of a serving worker. Built at the entry point and passed down; reads no environment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from redraft_queue.keys import check_name

from redraft_serving.access import ApiKeys, Secret
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.policy.settings import PolicySettings

MOST_TOKENS = 64


def _auto_or_number(value: object) -> object:
    """One sentence where pydantic would say what is wrong with each part of the union."""
    text = str(value)
    if text == "auto" or (text.isascii() and text.isdigit() and int(text) <= MOST_TOKENS):
        return value
    raise ValueError(f'use "auto" or a whole number from 0 to {MOST_TOKENS}')


Speculation = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_number)]
"""Tokens proposed in a round."""


class ServingSettings(BaseModel):
    """How one serving worker listens, batches, speculates, captures and follows the registry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    served_model_name: str | None = Field(
        default=None, description="Model id that clients name; by default the target's hub id or folder name."
    )
    api_key: Secret | None = Field(
        default=None, description="Key that clients send as `Authorization: Bearer`, for all of /v1."
    )
    api_keys: ApiKeys = Field(
        default={},
        description=(
            'Keys bound to domains, by name: {"shop": {"key": "...", "domains": ["faq"], "store": true}}; '
            'the first domain is the key\'s own, "*" is all of them.'
        ),
    )
    admin_key: Secret | None = Field(
        default=None,
        description="Key that steers drafts (speculation, promote, rollback, train) and may read everything.",
    )
    max_num_seqs: int = Field(default=8, ge=1, le=1024, description="Choices that generate at the same time.")
    max_waiting: int = Field(
        default=64, ge=0, description="Choices that may wait for a slot; beyond it, 429."
    )
    num_speculative_tokens: Speculation = Field(
        default="auto",
        description="Tokens proposed in a round: chosen by measurement, or fixed; 0 is plain decoding.",
    )
    domain_speculative_tokens: dict[str, Speculation] = Field(
        default={},
        description='The same for single domains, like {"support": 4}: what the start sets for them.',
    )
    max_speculative_tokens: int = Field(
        default=8,
        ge=1,
        le=MOST_TOKENS,
        description='Most that "auto" proposes and that a request may ask for.',
    )
    proposers: tuple[Literal["draft", "ngram", "prediction"], ...] = Field(
        default=("draft", "ngram", "prediction"), description="How tokens may be guessed."
    )
    prefill_chunk: int = Field(
        default=128, ge=16, description="Prompt tokens read between two rounds while others generate."
    )
    prefix_cache_mb: int = Field(
        default=256, ge=0, description="MiB that keep beginnings of prompts for reuse; 0 switches it off."
    )
    max_n: int = Field(default=16, ge=1, description="Largest `n` of one request.")
    max_prompts: int = Field(default=128, ge=1, description="Prompts in one completions request.")
    max_body_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1024, description="Largest request body in bytes; beyond it, 413."
    )
    max_header_bytes: int = Field(
        default=16 * 1024, ge=1024, description="Largest head of a request in bytes; beyond it, 431 or 400."
    )
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="Longest prompt in tokens; unset: as far as the model's window goes."
    )
    max_stops: int = Field(default=4, ge=0, description="Stop strings of one request.")
    max_stop_characters: int = Field(default=512, ge=1, description="Length of one stop string.")
    max_logit_bias: int = Field(default=1024, ge=0, description="Tokens that one `logit_bias` may name.")
    max_connections: int = Field(
        default=1024, ge=1, description="Open connections; requests beyond it get 503."
    )
    request_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Longest time of one request: then 408, or an error event in a stream that has begun.",
    )
    client_seconds: float = Field(
        default=30.0,
        gt=0,
        description=(
            "Seconds that a client may take to send the head of a request or its body, or to take what waits "
            "for it: then 408, or the connection is closed."
        ),
    )
    stream_interval: int = Field(
        default=1,
        ge=1,
        description=(
            "Tokens in one piece of a stream, at least. 1: each round's as they come; more hides how many "
            "each of them accepted."
        ),
    )
    no_store_domains: tuple[str, ...] = Field(
        default=(), description="Domains whose requests are never kept for training."
    )
    log_requests: bool = Field(
        default=False,
        description="One log line per request: ids, domain, key's name, tokens, times; no text.",
    )
    log_prompts: bool = Field(default=False, description="With log_requests: the prompts' text as well.")
    max_logprobs: int = Field(default=20, ge=0, description="Most alternatives reported per token.")
    poll_seconds: float = Field(default=5.0, gt=0, description="Seconds between looks at the champion alias.")
    registry_start_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Seconds that the start waits for the registry before it serves the base draft.",
    )
    max_domains: int = Field(
        default=256,
        ge=1,
        description="Domains that one worker serves; further names get 400, so that no header grows it.",
    )
    acceptance_short_tokens: float = Field(
        default=12_000.0,
        gt=0,
        description="Half-life, in tested tokens, of the short moving average of live acceptance; a shorter "
        "one sees a fall sooner, and falls that are none: let it span thirty requests of a domain or more.",
    )
    acceptance_long_tokens: float = Field(
        default=200_000.0,
        gt=0,
        description="Half-life of the long one; what falls in the short one alone has happened lately.",
    )
    capture_top_k: int = Field(default=32, ge=1, description="Entries of the target's law kept per position.")
    capture_buffer: int = Field(
        default=1024, ge=1, description="Samples held while Redis is away; then dropped."
    )
    policy: PolicySettings = Field(default_factory=PolicySettings)
    canary: CanarySettings = Field(default_factory=CanarySettings)
    adopt_default: bool = Field(
        default=True,
        description="A domain without a draft of its own begins with the default domain's champion.",
    )
    drain_seconds: float = Field(
        default=20.0, ge=0, description="Seconds that a stop waits for running requests."
    )

    @field_validator("domain_speculative_tokens")
    @classmethod
    def _domain_names(cls, value: dict[str, Speculation]) -> dict[str, Speculation]:
        for domain in value:
            check_name(domain)
        return value

    @field_validator("no_store_domains")
    @classmethod
    def _no_store_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for domain in value:
            check_name(domain)
        return value

    @model_validator(mode="after")
    def _keys_apart(self) -> ServingSettings:
        """One secret, one meaning: an admin key that clients hold as well would be no admin key."""
        single = [key.get_secret_value() for key in (self.api_key, self.admin_key) if key is not None]
        secrets = [*single, *(key.key.get_secret_value() for key in self.api_keys.values())]
        if len(set(secrets)) < len(secrets):
            raise ValueError("api_key, admin_key and the keys of api_keys must differ from each other")
        return self

    @model_validator(mode="after")
    def _short_before_long(self) -> ServingSettings:
        """The short average would never fall below the long one, and no fall would ever be seen."""
        if self.acceptance_short_tokens >= self.acceptance_long_tokens:
            raise ValueError(
                f"acceptance_short_tokens is {self.acceptance_short_tokens:g}, but must be less than "
                f"acceptance_long_tokens, {self.acceptance_long_tokens:g}"
            )
        return self

    @property
    def bound_domains(self) -> tuple[str, ...]:
        """Domains that keys are bound to: a worker knows them from its start."""
        bound = (key.domains for key in self.api_keys.values() if key.domains != "*")
        return tuple(dict.fromkeys(domain for domains in bound for domain in domains))
