"""Settings of the speculation policy. Built at the entry point and passed down; reads no environment."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class PolicySettings(BaseModel):
    """How the policy counts, explores and changes its mind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    explore_share: float = Field(
        default=0.005,
        ge=0,
        le=0.2,
        description="Share of time that probes and baselines may cost; 0: nothing is measured on purpose.",
    )
    switch_margin: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Modelled gain that a change of mind needs; shrinks to a tenth as a choice grows old.",
    )
    dwell_rounds: int = Field(
        default=50, ge=0, description="Rounds in which a choice that was left is not taken again."
    )
    refresh_rounds: int = Field(
        default=4,
        ge=1,
        description="Rounds for which a decision serves the same batch before it is looked at.",
    )
    half_life_tokens: float = Field(
        default=1000, gt=0, description="Tested tokens after which a count of acceptance weighs half."
    )
    prior_acceptance: float = Field(
        default=0.6, gt=0, lt=1, description="Acceptance assumed of a proposer that was never tested."
    )
    prior_tokens: float = Field(
        default=8,
        gt=0,
        description="Tested tokens that an assumption (prior, position before) weighs at first.",
    )
    change_threshold: float = Field(
        default=10.0,
        gt=0,
        description="Log likelihood ratio at which acceptance counts as changed and old counts are dropped.",
    )
    baseline_rounds: int = Field(
        default=100, ge=1, description="Fewest rounds between two plain ones that measure while speculating."
    )
    veto_rounds: int = Field(
        default=2000, ge=1, description="Rounds of plain decoding after speculation measured slower than it."
    )
