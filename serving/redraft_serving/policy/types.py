"""What the policy is told of a round, and what it answers. All times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Setting = Literal["auto"] | int
"""How many tokens to propose: chosen by the policy, or fixed; 0 is plain decoding."""

DRAFT, NGRAM, PREDICTION = "draft", "ngram", "prediction"
"""Names of proposers: the draft model, n-gram lookup over prompt and output, predicted output."""


@dataclass(frozen=True, slots=True)
class RowView:
    """One row before a round."""

    domain: str
    temperature: str
    """Its temperature class: "greedy", "cool", "warm" or "seeded". Acceptance is counted apart for each."""
    offers: Mapping[str, int]
    """Most tokens that each proposer can propose for this row now, window and `max_tokens` considered. A
    proposer that has nothing is absent, or 0."""
    setting: Setting = "auto"
    """What the request asks for, else the domain's setting."""
    behind: int = 0
    """Tokens of this row that the draft model would have to read before its first step (beyond the one or two
    that ride along); what a probe of a row that was off costs extra. 0 where unknown."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What one row does in a round."""

    proposer: str | None
    k: int
    """Most tokens to propose; 0 with no proposer: plain decoding."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round, decided."""

    rows: tuple[RowPlan, ...]
    kind: Literal["decided", "probe", "baseline"]
    """probe: some rows propose what was not decided, to measure it; baseline: decodes plainly to measure."""
    tokens_per_second: float | None
    """Modelled rate of the decided plan: what a further drafted token has to beat. None: unknown yet."""
    modelled_gain: float | None = None
    """tokens_per_second over that of plain decoding."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What became of one row's proposal."""

    proposed: int
    tested: int
    accepted: int
    emitted: int
    confidences: tuple[float, ...] = ()
    """Of each drafted token: the largest probability of the law it was drawn from. Empty where unknown."""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """What a round took."""

    rows: int
    width: int
    """Tokens per row in the target's pass: 1 + the largest number proposed."""
    verify: float
    draft_rows: int = 0
    draft_steps: int = 0
    draft: float = 0.0
    """The draft model's passes, its catch-up included."""
    catch_up_tokens: int = 0
    """Tokens that the draft had to read before its first step, all rows together."""
    rest: float = 0.0
    """Everything else: lookups, accepting, committing, sinks."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What the policy does for one domain, and from which numbers. Numbers without data are None."""

    setting: Setting
    state: Literal["speculating", "off", "fixed"]
    reason: str
    """One sentence."""
    num_speculative_tokens: int
    """K of the last decided round."""
    proposer: str | None
    acceptance_by_position: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Per proposer: accepted / tested at each position, recent counts weighted more."""
    draft_step_seconds: float | None = None
    verify_seconds: float | None = None
    plain_seconds: float | None = None
    """A plain round of the same number of rows."""
    rest_seconds: float | None = None
    break_even_acceptance: float | None = None
    """Per-token acceptance at which this K would just pay for itself."""
    modelled_gain: float | None = None
    measured_gain: float | None = None
    """Tokens/s of speculating rounds over those of plain rounds, both measured lately."""
    switches: int = 0
    probes: int = 0
    baselines: int = 0
