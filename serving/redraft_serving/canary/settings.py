"""Settings of canary and watch. Built at the entry point and passed down; reads no environment."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class CanarySettings(BaseModel):
    """How a new version is tried on live traffic, and how it is watched afterwards (docs/canary.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: float = Field(
        default=0.1,
        ge=0,
        le=0.5,
        description="Share of a domain's requests that an approved candidate serves before it may become "
        "champion; 0: the gate alone decides.",
    )
    min_requests: int = Field(
        default=50, ge=10, description="Finished requests that each arm needs before anything is decided."
    )
    min_tested_tokens: int = Field(
        default=1000, ge=1, description="Tested tokens that each arm needs before acceptance is compared."
    )
    max_acceptance_loss: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="Acceptance that a candidate may surely not lose against the champion.",
    )
    max_slowdown: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Time per emitted token that a candidate may surely not add, relative to the champion's.",
    )
    error_rate: float = Field(
        default=0.01,
        gt=0,
        lt=0.5,
        description="Chance of a wrong decision on a candidate, however often the evidence is looked at.",
    )
    max_requests: int = Field(
        default=4000, ge=10, description="Candidate's requests after which an undecided one stays out."
    )
    max_seconds: float = Field(
        default=7 * 86_400, gt=0, description="Seconds after which an undecided candidate stays out."
    )
    watch_share: float = Field(
        default=0.05,
        ge=0,
        le=0.5,
        description="Share of requests that the version before goes on serving, so that a champion that "
        "decays is told from traffic that changes; 0: no watch.",
    )
    watch_window_requests: int = Field(
        default=300,
        ge=10,
        description="Requests of the version before after which the watch begins anew, so that old evidence "
        "does not hide a late decay.",
    )
    watch_max_acceptance_loss: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="A champion that surely loses more acceptance than this is rolled back.",
    )
    watch_max_slowdown: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="A champion that surely adds more time per emitted token than this is rolled back.",
    )
    watch_error_rate: float = Field(
        default=0.01, gt=0, lt=0.5, description="Chance of a wrong rollback in one window of the watch."
    )

    @model_validator(mode="after")
    def _room_for_evidence(self) -> Self:
        """A trial that ends before anything may be decided would decide nothing, without a word."""
        for name, share, most in (
            ("max_requests", self.share, self.max_requests),
            ("watch_window_requests", self.watch_share, self.watch_window_requests),
        ):
            if share > 0 and most < self.min_requests:
                raise ValueError(
                    f"{name} is {most}, but nothing is decided before min_requests, {self.min_requests}: "
                    f"raise {name} or lower min_requests"
                )
        return self
