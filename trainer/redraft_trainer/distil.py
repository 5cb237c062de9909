"""Distil a target's logged law into a LoRA adapter of the draft. The method of one training, wherever it
runs.

Called by the training process of a round and by the healing of a cut draft. One training is a pure function
of its examples, settings and seed: the same input gives the same adapter on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from redraft_models.adapter import Adapter
from torch import Tensor, nn
from transformers import PreTrainedModel

from redraft_trainer.data import Batch, Example, limit_tokens, training_batches
from redraft_trainer.errors import NoUsableSamples
from redraft_trainer.forward import Head, Trunk, head_loss
from redraft_trainer.guard import Guard
from redraft_trainer.heads import inside, places
from redraft_trainer.losses import LOSSES, Targets
from redraft_trainer.measure import score
from redraft_trainer.preparation import learning_rate, make_accelerator, set_dropout, sharded, with_lora
from redraft_trainer.settings import Precision, TrainerSettings

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step: mean loss per position in nats, gradient norm before clipping."""

    step: int
    loss: float
    learning_rate: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Distilled:
    """A finished training. `model` is the PEFT model in eval mode with the weights of `best_step`."""

    model: Any
    best_step: int
    steps: tuple[Step, ...]
    validation: tuple[tuple[int, float], ...]
    """(step, measured acceptance of the validation examples); step 0 is before the training. Empty without
    examples.
    """
    precision_effective: Precision
    device: str
    trained_tokens: int
    seconds: float


def distil(
    draft_module: PreTrainedModel,
    train_examples: Sequence[Example],
    validation_examples: Sequence[Example],
    settings: TrainerSettings,
    *,
    vocab_size: int,
    start: Adapter | None = None,
    head_ids: Tensor | None = None,
    progress: Progress | None = None,
    accelerator: Accelerator | None = None,
) -> Distilled:
    """Train LoRA on all linear layers of the draft, which gets its adapters in place (`.model.unload()`
    takes them out).

    `start` continues an adapter of the same rank, else AdapterRejected. With `head_ids` [S] the draft learns
    the target's law on these ids alone, which its trimmed head will score. `progress` gets plain
    dictionaries: stage "train" per step and "validate" per evaluation. Without validation examples the last
    step is the best one. Raises NoUsableSamples without training examples, Diverged where a loss, gradient
    or weight runs away.
    """
    if not train_examples:
        raise NoUsableSamples(
            "there is no example to train on: every sample of the range was skipped or held out"
        )
    accelerator = accelerator or make_accelerator(settings.mixed_precision, draft_module.device)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = with_lora(draft_module.to(accelerator.device), settings, start)
        validation = limit_tokens(validation_examples, settings.validation_tokens)
        return _Training(
            draft_module, model, settings, vocab_size, validation, accelerator, progress, head_ids
        ).run(train_examples)


@dataclass
class _Training:
    """The state of one training; `run` is its loop."""

    draft: PreTrainedModel
    model: Any
    settings: TrainerSettings
    vocab_size: int
    validation: Sequence[Example]
    accelerator: Accelerator
    progress: Progress | None
    head_ids: Tensor | None
    steps: list[Step] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})
    tokens: int = 0

    def run(self, examples: Sequence[Example]) -> Distilled:
        """Train until `max_steps`, or until `patience` evaluations brought nothing; then restore the best
        step.
        """
        started = time.monotonic()
        trunk, optimizer = self._prepare()
        guard = Guard(self.vocab_size, tolerate_skips=self.precision == "fp16")
        batches = sharded(
            training_batches(examples, self.settings.batch_size, self.settings.seed), self.accelerator
        )
        self._evaluate(0)
        for step in range(1, self.settings.max_steps + 1):
            taken = self._step(step, trunk, optimizer, next(batches))
            guard.check_step(taken, skipped=optimizer.step_was_skipped)
            self.steps.append(taken)
            self._report(taken, time.monotonic() - started)
            if step % self.settings.eval_every == 0 or step == self.settings.max_steps:
                guard.check_weights(self._trainable())
                if self._evaluate(step):
                    break
        self._restore()
        return self._result(time.monotonic() - started)

    @property
    def precision(self) -> Precision:
        """What the training really computes in."""
        return self.accelerator.mixed_precision  # type: ignore[no-any-return]

    def _prepare(self) -> tuple[nn.Module, Any]:
        parameters = [weight for _, weight in self._trainable()]
        optimizer = torch.optim.AdamW(parameters, lr=self.settings.learning_rate, weight_decay=0.0)
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        # Measuring needs the full head beside the trimmed one: what the latter leaves out is lost there.
        self.head = self.full_head = Head(self.draft, half)
        self.scored, self.place_V = self.vocab_size, None
        if self.head_ids is not None:
            self.head = Head(self.draft, half, self.head_ids)
            self.scored = len(self.head_ids)
            self.place_V = places(self.head_ids, self.vocab_size, self.accelerator.device)
        trunk, prepared = self.accelerator.prepare(Trunk(self.draft), optimizer)
        return trunk, prepared

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]

    def _step(self, step: int, trunk: nn.Module, optimizer: Any, batch: Batch) -> Step:
        rate = learning_rate(step, self.settings)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if self.place_V is not None:
            batch = inside(batch, self.place_V)
        set_dropout(self.model, training=True)
        with self.accelerator.autocast():
            hidden_NH = trunk(batch.input_ids_BT, batch.loss_index_N)
            surrogate, loss = head_loss(hidden_NH, self.head, self._loss, batch.targets)
        self.accelerator.backward(surrogate)
        norm = self.accelerator.clip_grad_norm_(
            [weight for _, weight in self._trainable()], self.settings.max_grad_norm
        )
        optimizer.step()
        optimizer.zero_grad()
        self.tokens += len(batch.targets) * self.accelerator.num_processes
        mean = self.accelerator.reduce(loss, reduction="mean")
        return Step(step, float(mean), rate, float(norm))

    def _loss(self, logits_NV: Tensor, targets: Targets) -> Tensor:
        return LOSSES[self.settings.loss](logits_NV, targets, self.scored)

    def _evaluate(self, step: int) -> bool:
        """Score the validation examples and keep the weights if they are the best; True where patience has
        run out.
        """
        if not self.validation:
            return False
        set_dropout(self.model, training=False)
        with self.accelerator.autocast():
            overlaps = score(
                self.draft, self.validation, self.vocab_size, head=self.full_head, head_ids=self.head_ids
            ).overlaps
        acceptance = float(torch.cat(overlaps).double().mean())
        self.curve.append((step, acceptance))
        self._tell({"stage": "validate", "step": step, "validation_acceptance": acceptance})
        if acceptance > self.best[0]:
            kept = {name: weight.detach().clone() for name, weight in self._trainable()}
            self.best = (acceptance, step, kept)
        evaluations_since = sum(1 for when, _ in self.curve if when > self.best[1])
        return evaluations_since >= self.settings.patience

    @torch.no_grad()
    def _restore(self) -> None:
        set_dropout(self.model, training=False)
        for name, weight in self._trainable():
            if name in self.best[2]:
                weight.copy_(self.best[2][name])

    def _report(self, taken: Step, seconds: float) -> None:
        values = {"loss": taken.loss, "learning_rate": taken.learning_rate, "grad_norm": taken.grad_norm}
        total = {"step": taken.step, "total": self.settings.max_steps, "seconds": round(seconds, 3)}
        self._tell({"stage": "train", **total, **values})

    def _tell(self, event: dict[str, Any]) -> None:
        if self.progress is not None and self.accelerator.is_main_process:
            self.progress(event)

    def _result(self, seconds: float) -> Distilled:
        return Distilled(
            model=self.model.eval(),
            best_step=self.best[1] if self.curve else len(self.steps),
            steps=tuple(self.steps),
            validation=tuple(self.curve),
            precision_effective=self.precision,
            device=str(self.accelerator.device),
            trained_tokens=self.tokens,
            seconds=seconds,
        )
