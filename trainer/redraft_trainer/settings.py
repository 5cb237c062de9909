"""Settings of a training round and of its gate. Plain models: the entry point builds them and passes them
down.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Loss = Literal["forward_kl", "reverse_kl", "jsd", "total_variation", "cross_entropy"]
Precision = Literal["no", "bf16", "fp16"]
Priority = Literal["idle", "low"]
NEVER, IDLE = "never", "idle"


class TrainerSettings(BaseModel):
    """How a draft is distilled. Steps are optimiser steps of `batch_size` sequences per process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=1e-3, gt=0)
    max_steps: int = Field(default=200, ge=1)
    rank: int = Field(default=64, ge=1)
    lora_alpha: float = Field(default=64.0, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    batch_size: int = Field(default=8, ge=1)
    max_sequence_length: int = Field(default=1024, ge=2)
    """Longest prompt + output that is trained on; a longer output is cut at its end."""
    loss: Loss = "forward_kl"
    mixed_precision: Precision = "no"
    warmup_fraction: float = Field(default=0.05, ge=0, le=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    holdout_percent: int = Field(default=20, ge=1, le=90)
    """Share of all prompts that only the gate sees. Once raised it stays so for a domain: lowering it would
    train on prompts that versions were measured on.
    """
    validation_percent: int = Field(default=10, ge=0, le=90)
    """Share of the training prompts that choose the step and stop the training early."""
    validation_tokens: int = Field(default=4096, ge=1)
    """At most about this many tokens are scored at each evaluation."""
    max_heldout_tokens: int = Field(default=60_000, ge=1)
    """At most about this many held-out tokens are measured, chosen by a hash."""
    eval_every: int = Field(default=20, ge=1)
    patience: int = Field(default=3, ge=1)
    """Evaluations without a better validation acceptance before the training stops."""
    replay_fraction: float = Field(default=0.25, ge=0, lt=1)
    """Share of the training tokens that is drawn from before the cursor."""
    start_from: Literal["champion", "base"] = "champion"
    head_size: int = Field(default=8192, ge=0)
    """Ids that the new draft's head scores: those that the training samples use, then the lowest; rounded up
    to a multiple of 64. 0, or a vocabulary less than twice as large, keeps the full head.
    """
    num_processes: int = Field(default=1, ge=1)
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of the training process; None: what OMP_NUM_THREADS says, else half of the cores."""
    priority: Priority = "idle"
    """Of the training process: "idle" works only while nothing else wants the core; "low" goes on
    even then, with a tenth of it, or a fair share where the kernel counts by session: for machines that are
    never quiet.
    """
    device: str | None = Field(default=None, pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where training runs; None: where serving does, as models.device says."""
    gpu_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    """Most of a GPU's memory that training may take, so that serving on the same one keeps its own."""
    yield_to_serving: str = Field(default=NEVER, pattern=r"^(never|idle|[1-9]\d?%)$")
    """When training waits for serving workers of this machine: "never" (it only has its low priority),
    "idle" (it trains only while no request runs or waits), or "25%" (its share of the time while they work).
    """
    max_pause_seconds: float = Field(default=1800.0, ge=0)
    """A round waits for serving at most this long in all, which its time limit leaves out; then it goes on
    at its low priority.
    """
    seed: int = 0

    @property
    def serving_share(self) -> float | None:
        """Share of the time that training may use while serving works; None: no limit."""
        if self.yield_to_serving == NEVER:
            return None
        return 0.0 if self.yield_to_serving == IDLE else int(self.yield_to_serving.rstrip("%")) / 100

    @model_validator(mode="after")
    def _one_process_waits(self) -> Self:
        if self.yield_to_serving != NEVER and self.num_processes > 1:
            raise ValueError(
                f"yield_to_serving is {self.yield_to_serving!r}, but with {self.num_processes} processes a "
                'pause would run into the time limit of their exchange: use "never" or num_processes 1'
            )
        return self


class GateSettings(BaseModel):
    """When a candidate is good enough to replace the champion."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_gain: float = 0.0
    """The lower end of the gain's interval must exceed this."""
    min_heldout_requests: int = Field(default=30, ge=1)
    min_heldout_tokens: int = Field(default=1000, ge=1)
    max_regression: float = Field(default=0.02, ge=0)
    """Most acceptance that any other domain may lose which the same draft serves (`shared_drafts`), measured
    on its newest held-out samples; one with fewer of them than a decision needs is not looked at.
    """
    confidence: float = Field(default=0.95, gt=0.5, lt=1)

    @model_validator(mode="after")
    def _gain_is_a_share(self) -> GateSettings:
        if not -1.0 < self.min_gain < 1.0:
            raise ValueError(
                f"min_gain is {self.min_gain}, but acceptance lies between 0 and 1: use e.g. 0.01"
            )
        return self
