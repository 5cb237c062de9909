"""What the engine knows of one request in flight."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import dataclass, field

import torch
from redraft_models.laws import GREEDY_EPSILON
from torch import Tensor

from redraft_serving.engine.interface import EmissionSink, GenerationRequest, TokenLogprob
from redraft_serving.text import TextStream


@dataclass(slots=True)
class EmittedToken:
    """One token given to the request, with what a sample records of it."""

    token_id: int
    outcome: str
    drafted_id: int = -1
    topk_ids: Tensor | None = None
    topk_logprobs: Tensor | None = None
    tail_mass: float = 0.0
    logprob: TokenLogprob | None = None


@dataclass(slots=True)
class Row:
    """A request in a slot. `tokens` is prompt and output; both caches hold a prefix of it."""

    request: GenerationRequest
    sink: EmissionSink
    text: TextStream
    generator: torch.Generator
    submitted: float
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    draft_length: int = 0
    """How many tokens of the row the draft's cache holds."""
    plain_reason: str | None = None
    """Why this row no longer speculates (nonfinite | window), if so."""
    emitted: list[EmittedToken] = field(default_factory=list)
    settled: int = 0
    """Output tokens whose text is decided: they may be handed to the sink."""
    released: int = 0
    """Output tokens already handed to the sink."""
    told: bool = False
    """The sink has been called with the end."""
    output_counts: Counter[int] = field(default_factory=Counter)
    admitted: float = 0.0
    decoding: float = 0.0
    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    accepted_histogram: list[int] = field(default_factory=list)
    versions: list[list[int | str]] = field(default_factory=list)
    """Runs of [draft version, rounds]."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted under `max_tokens`."""
        return self.request.max_tokens - len(self.emitted)

    @property
    def greedy(self) -> bool:
        """True where the law is a one-hot."""
        return self.request.sampling.temperature <= GREEDY_EPSILON

    @property
    def shaped(self) -> bool:
        """True where the logits depend on what was said before, or are biased."""
        s = self.request.sampling
        penalties = s.presence_penalty != 0 or s.frequency_penalty != 0 or s.repetition_penalty != 1
        return penalties or bool(s.logit_bias) or len(self.emitted) < self.request.min_tokens

    def uniforms(self, k: int) -> Tensor:
        """2k+1 draws of this row's own generator: k to draft, k to accept, one for the last token.

        The number depends on the row alone, so that a seed gives the same answer whatever else runs.
        """
        return torch.rand(2 * k + 1, generator=self.generator, dtype=torch.float64)

    def count_version(self, version: int | str) -> None:
        """Note that one more round belonged to `version`."""
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] = int(self.versions[-1][1]) + 1
        else:
            self.versions.append([version, 1])


def new_row(request: GenerationRequest, sink: EmissionSink, text: TextStream) -> Row:
    """A row for a request that waits. Without a seed its generator is seeded afresh."""
    generator = torch.Generator()
    seed = request.sampling.seed
    generator.manual_seed(secrets.randbits(63) if seed is None else seed % (1 << 63))
    return Row(request, sink, text, generator, time.monotonic(), tokens=list(request.prompt_ids))
