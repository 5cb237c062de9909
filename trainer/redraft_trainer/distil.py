"""Distil a target's logged law into a LoRA adapter of the draft. The method of one training, wherever it
runs.

Called by the training process of a round and by the healing of a cut draft. One training is a pure function
of its examples, settings and seed: the same input gives the same adapter on the same machine.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from redraft_models.adapter import Adapter, load_into_peft
from torch import Tensor, nn
from transformers import PreTrainedModel

from redraft_trainer.data import Batch, Example, limit_tokens, training_batches
from redraft_trainer.errors import NoUsableSamples
from redraft_trainer.forward import Head, Trunk, head_loss
from redraft_trainer.guard import Guard
from redraft_trainer.losses import LOSSES, Targets
from redraft_trainer.measure import score
from redraft_trainer.settings import Precision, TrainerSettings

Progress = Callable[[dict[str, Any]], None]
FINAL_RATE = 0.05
"""Share of the peak learning rate that the cosine ends at."""


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
    progress: Progress | None = None,
    accelerator: Accelerator | None = None,
) -> Distilled:
    """Train LoRA on all linear layers of the draft, which gets its adapters in place (`.model.unload()`
    takes them out).

    `start` continues an adapter of the same rank, else AdapterRejected. `progress` gets plain dictionaries:
    stage "train" per step and "validate" per evaluation. Without validation examples the last step is the
    best one. Raises NoUsableSamples without training examples, Diverged where a loss, gradient or weight
    runs away.
    """
    if not train_examples:
        raise NoUsableSamples(
            "there is no example to train on: every sample of the range was skipped or held out"
        )
    accelerator = accelerator or make_accelerator(settings.mixed_precision, draft_module.device)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = _with_lora(draft_module.to(accelerator.device), settings, start)
        validation = limit_tokens(validation_examples, settings.validation_tokens)
        return _Training(draft_module, model, settings, vocab_size, validation, accelerator, progress).run(
            train_examples
        )


def make_accelerator(wanted: Precision, device: torch.device) -> Accelerator:
    """The process's accelerator. There is one precision per process: a second one of another kind is
    refused.
    """
    on_cpu = device.type == "cpu"
    return Accelerator(mixed_precision=effective_precision(wanted, on_cpu), cpu=on_cpu)


def effective_precision(wanted: Precision, on_cpu: bool) -> Precision:
    """What `wanted` comes to. fp16 needs loss scaling, which only a GPU has: on the CPU it is full
    precision.
    """
    return "no" if wanted == "fp16" and on_cpu else wanted


def _with_lora(draft_module: PreTrainedModel, settings: TrainerSettings, start: Adapter | None) -> Any:
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear",
    )
    with warnings.catch_warnings():
        # peft asks the model for a name that transformers is about to drop.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        model = get_peft_model(draft_module, config)
    if start is not None:
        load_into_peft(model, start)
    return model.eval()


def learning_rate(step: int, settings: TrainerSettings) -> float:
    """Linear warm-up, then a cosine down to FINAL_RATE of the peak. `step` counts from 1."""
    warmup = max(1, round(settings.warmup_fraction * settings.max_steps))
    if step <= warmup:
        return settings.learning_rate * step / warmup
    done = (step - warmup) / max(1, settings.max_steps - warmup)
    return settings.learning_rate * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * done)))


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
        batches = _sharded(
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
        self.head = Head(self.draft, half)
        trunk, prepared = self.accelerator.prepare(Trunk(self.draft), optimizer)
        return trunk, prepared

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]

    def _step(self, step: int, trunk: nn.Module, optimizer: Any, batch: Batch) -> Step:
        rate = learning_rate(step, self.settings)
        for group in optimizer.param_groups:
            group["lr"] = rate
        _set_dropout(self.model, training=True)
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
        return LOSSES[self.settings.loss](logits_NV, targets, self.vocab_size)

    def _evaluate(self, step: int) -> bool:
        """Score the validation examples and keep the weights if they are the best; True where patience has
        run out.
        """
        if not self.validation:
            return False
        _set_dropout(self.model, training=False)
        with self.accelerator.autocast():
            overlaps = score(self.draft, self.validation, self.vocab_size, head=self.head).overlaps
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
        _set_dropout(self.model, training=False)
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


def _set_dropout(model: nn.Module, *, training: bool) -> None:
    """Switch LoRA's own dropout; the base stays in eval mode, as it is served."""
    for name, module in model.named_modules():
        if "lora_dropout" in name:
            module.train(training)


def _sharded(batches: Iterator[Batch], accelerator: Accelerator) -> Iterator[Batch]:
    """Every `num_processes`-th batch for each process, on its device: together they see each batch once."""
    mine = itertools.islice(batches, accelerator.process_index, None, accelerator.num_processes)
    return (batch.to(accelerator.device) for batch in mine)
