"""The one small interface through which HTTP, capture and swap see an engine.

Submit a request, receive emitted tokens with their law and counts, swap a draft, read statistics. Another
engine can stand behind it: nothing here knows about torch or caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from redraft_models.adapter import Adapter

from redraft_serving.policy.types import PolicyReport, Setting

Arm = Literal["champion", "challenger", "previous"]
"""Which of a domain's drafts serves a request: the champion, or, in a trial, the other one for a share."""
CHAMPION: Arm = "champion"
CHALLENGER: Arm = "challenger"
PREVIOUS: Arm = "previous"
_AT = "@"
"""Stands in no domain's name."""


def lane(domain: str, arm: Arm) -> str:
    """One name for a domain's arm: what weights, counts and the policy are kept by. The champion's is the
    domain itself.
    """
    return domain if arm == CHAMPION else f"{domain}{_AT}{arm}"


def domain_and_arm(lane: str) -> tuple[str, Arm]:
    """The way back from `lane`."""
    domain, _, arm = lane.partition(_AT)
    return domain, cast(Arm, arm or CHAMPION)


class EngineError(Exception):
    """Root of what an engine raises."""


class EngineFull(EngineError):
    """The bounded queue is full; the client may try again after `retry_after_seconds`."""

    def __init__(self, waiting: int, retry_after_seconds: int = 1) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class EngineDead(EngineError):
    """The inference thread has ended; the worker has to be restarted."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's law is processed before a token is drawn. temperature <= GREEDY_EPSILON is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice to generate. A request with n > 1 is n of these, seeds derived by the caller."""

    request_id: str
    """Shared by all choices of a request: `cancel` ends them all."""
    domain: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    top_logprobs: int | None = None
    """How many alternatives to report per token besides the token itself; None = no log-probabilities."""
    capture: bool = True
    """False: no Sample is made of this request (`store: false`)."""
    num_speculative_tokens: Setting | None = None
    """Tokens to propose per round, 0 for plain decoding, "auto" for the policy's choice; None: the domain's
    setting."""
    prediction_ids: tuple[int, ...] = ()
    """What the client expects the answer to be (OpenAI's predicted outputs)."""
    choice: int = 0
    """Index of this choice in its request."""
    arm: Arm = CHAMPION
    """Which of the domain's drafts proposes; one that isn't loaded (any more) is the champion."""
    user: str | None = None
    """Whose request it is, as far as the sample tells (a hash): what `redraft forget --user` looks for."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of an emitted token under the target's unprocessed law, with the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """Raw counts and times of a finished choice. `accepted_histogram[j]`: rounds that accepted exactly j."""

    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    emitted: int = 0
    accepted_histogram: tuple[int, ...] = ()
    draft_versions: tuple[tuple[int | str, int], ...] = ()
    """Runs of (draft version, rounds)."""
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were not computed anew."""
    prediction_accepted: int = 0
    """Tokens of the client's prediction that appear in the answer, as OpenAI counts them."""
    prediction_rejected: int = 0
    """All other tokens of the client's prediction."""
    proposers: Mapping[str, int] = field(default_factory=dict)
    """Rounds by proposer; plain rounds as "plain"."""
    draft_tested: int = 0
    draft_accepted: int = 0
    """Of the draft model's proposals alone: what versions are compared by."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What one round gave to one request: new text and the tokens behind it.

    `text` never contains a part of a stop string. The last emission carries `finish_reason` and `statistics`.
    A token may arrive with an empty text (a multi-byte character is not complete yet, or a stop string may
    have begun).
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    """stop | length | abort | error"""
    stop_reason: str | int | None = None
    error: str | None = None
    statistics: RequestStatistics | None = None


@dataclass(frozen=True, slots=True)
class SwapResult:
    """What the engine read back after a swap."""

    domain: str
    version: int | str
    checksum: str
    """sha256 over the serving weights that the adapter touched, read after writing."""
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """Counts of one domain under its present draft version, since that version began to serve."""

    domain: str
    version: int | str
    rounds: int
    proposed: int
    tested: int
    accepted: int
    emitted: int
    accepted_per_position: tuple[int, ...]
    tested_per_position: tuple[int, ...]
    checksum: str | None
    adapter: Adapter | None
    num_speculative_tokens: int
    """Of the last decided round."""
    state: str
    """speculating | off | fixed"""
    policy: PolicyReport | None = None
    arm: Arm = CHAMPION


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes that the engine holds. A slot is one row's place in the caches."""

    target: int = 0
    draft: int = 0
    """What the draft holds of its own, copies for domains included; shared tensors count as the target's."""
    slots: int = 0
    target_cache_per_slot: int = 0
    draft_cache_per_slot: int = 0
    prefix_cache: int = 0
    prefix_cache_limit: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts of the whole engine since its start. Totals never fall."""

    running: int
    waiting: int
    rounds: int
    proposed: int
    tested: int
    accepted: int
    emitted: Mapping[str, int]
    """By outcome: accepted | corrected | bonus | plain."""
    accepted_per_position: tuple[int, ...]
    tested_per_position: tuple[int, ...]
    prompt_tokens: int
    finished: Mapping[str, int]
    """By finish reason."""
    fallback_rows: Mapping[str, int]
    """Rows that fell back to plain decoding, by reason (nonfinite | window)."""
    drafts: tuple[DraftStatistics, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of the inference thread by phase: draft | verify | prefill | rest | idle."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    memory: MemoryReport = field(default_factory=MemoryReport)


EmissionSink = Callable[[Emission], None]


class Engine(Protocol):
    """A serving engine. Methods may be called from any thread; sinks are called on the inference thread."""

    num_speculative_tokens: Setting
    """Setting of domains that have none of their own; 0 where no draft and no other proposer is there."""
    max_speculative_tokens: int
    max_model_len: int
    max_num_seqs: int

    def start(self) -> None:
        """Start the inference thread."""

    def submit(self, request: GenerationRequest, sink: EmissionSink) -> None:
        """Queue a request. Raises EngineFull or EngineDead."""

    def cancel(self, request_id: str) -> None:
        """Stop a request within one round and free its slot. Unknown ids are ignored."""

    def swap(
        self, domain: str, adapter: Adapter | None, version: int | str, arm: Arm = CHAMPION
    ) -> Future[SwapResult]:
        """Serve base + adapter for a domain's arm from between two rounds on (None = the base draft).

        A future that is cancelled says that the swap found no place in time and never will.
        """

    def retire(self, domain: str, arm: Arm) -> None:
        """Take an arm that isn't the champion away; its requests in flight go on with the champion."""

    def configure(self, domain: str, num_speculative_tokens: Setting | None) -> None:
        """Change a domain's setting from the next round on; None: back to the worker's own."""

    def statistics(self) -> EngineStatistics:
        """A consistent snapshot."""

    @property
    def alive(self) -> bool:
        """False once the inference thread has ended."""

    def stop(self) -> None:
        """End the inference thread; requests in flight finish with 'abort'."""
