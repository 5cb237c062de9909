"""What the engine knows of one request in flight."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from redraft_models.laws import GREEDY_EPSILON
from torch import Tensor

from redraft_serving.engine.interface import EmissionSink, GenerationRequest, TokenLogprob, lane
from redraft_serving.engine.lookup import NgramIndex
from redraft_serving.engine.prediction import PredictedOutput
from redraft_serving.text import TextStream

COOL = 0.7
"""Temperatures up to this are a class of their own."""
_MIX = 0x9E3779B97F4A7C15
"""Spreads neighbouring seeds apart (the odd constant of Fibonacci hashing)."""
_LEAST = 1e-30


@dataclass(slots=True)
class EmittedToken:
    """One token given to the request, with what a sample records of it."""

    token_id: int
    outcome: str
    drafted_id: int = -1
    by_draft: bool = False
    """True where the draft model drew the proposal that this outcome is about."""
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
    coupled: bool = False
    """A seed fixes the answer although the number of proposed tokens follows measured times: see `noise`."""
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    length: int = 0
    """How many tokens of the row the target's cache holds."""
    rotten: bool = False
    """The target's logits were not finite while its prompt was read."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    draft_length: int = 0
    """How many tokens of the row the draft's cache holds."""
    draft_reads: bool = False
    """The draft reads the prompt as it comes."""
    draft_swaps: int = 0
    """Swaps of its domain before it got its slot: until the next one, these are keys and values of one weight
    set."""
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
    ngrams: NgramIndex | None = None
    """Of prompt and output; made when a round first looks."""
    prediction: PredictedOutput | None = None
    guesses: dict[str, list[int]] = field(default_factory=dict)
    """By proposer: what it guesses for the present round."""
    proposers: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    draft_rounds: int = 0
    draft_proposed: int = 0
    draft_tested: int = 0
    draft_accepted: int = 0
    """Of the rounds that the draft model proposed for: what a sample tells."""
    accepted_histogram: list[int] = field(default_factory=list)
    versions: list[list[int | str]] = field(default_factory=list)
    """Runs of [draft version, rounds]."""
    seed: int = 0
    _noise: dict[int, Tensor] = field(default_factory=dict)

    @property
    def lane(self) -> str:
        """Which of the drafts this row asks for."""
        return lane(self.request.domain, self.request.arm)

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
    def sampled(self) -> bool:
        """True where tokens are accepted by modified rejection sampling, against the law they came from."""
        return not self.greedy and not self.coupled

    @property
    def temperature_class(self) -> str:
        """Rows of one class are accepted alike: acceptance is counted apart for each."""
        if self.greedy:
            return "greedy"
        if self.coupled:
            return "seeded"
        return "cool" if self.request.sampling.temperature <= COOL else "warm"

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

    def noise(self, position: int, size: int) -> Tensor:
        """Exponential draws [size] that belong to this row's seed and this position of its text.

        The token with the largest p / noise follows the law p exactly (Gumbel-max). Draft and target read the
        same noise, so a drafted token is kept where both pick it: the answer is the target's own pick at each
        position, the same with any draft, any number of proposed tokens, and none (Daliri et al. 2025).
        """
        known = self._noise.get(position)
        if known is None:
            self.generator.manual_seed((self.seed * _MIX + position) % (1 << 63))
            known = torch.empty(size).exponential_(generator=self.generator).clamp_min_(_LEAST)
            self._noise[position] = known
        return known

    def grow(self, tokens: Sequence[int]) -> None:
        """The row keeps what a round emitted; the target's cache holds all but the last of it."""
        self.tokens.extend(tokens)
        self.length = len(self.tokens) - 1
        self.output_counts.update(tokens)
        self._noise = {place: one for place, one in self._noise.items() if place >= len(self.tokens)}
        if self.ngrams is not None:
            self.ngrams.extend(tokens)
        if self.prediction is not None:
            self.prediction.extend(tokens)

    def count_version(self, version: int | str) -> None:
        """Note that one more round belonged to `version`."""
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] = int(self.versions[-1][1]) + 1
        else:
            self.versions.append([version, 1])


def new_row(request: GenerationRequest, sink: EmissionSink, text: TextStream) -> Row:
    """A row for a request that waits. Without a seed its generator is seeded afresh."""
    seed = request.sampling.seed
    seed = secrets.randbits(63) if seed is None else seed % (1 << 63)
    generator = torch.Generator()
    generator.manual_seed(seed)
    row = Row(request, sink, text, generator, time.monotonic(), tokens=list(request.prompt_ids), seed=seed)
    if request.prediction_ids:
        row.prediction = PredictedOutput(request.prediction_ids)
    return row
