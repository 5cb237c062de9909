"""What a training is made of before its first step: the accelerator, LoRA on the draft, rates and batches."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from redraft_models.adapter import Adapter, load_into_peft
from torch import nn
from transformers import PreTrainedModel

from redraft_trainer.data import Batch
from redraft_trainer.settings import Precision, TrainerSettings

FINAL_RATE = 0.05
"""Share of the peak learning rate that the cosine ends at."""


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


def with_lora(draft_module: PreTrainedModel, settings: TrainerSettings, start: Adapter | None) -> Any:
    """The draft with LoRA on all its linear layers, in eval mode; zero, or `start`, else AdapterRejected."""
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


def set_dropout(model: nn.Module, *, training: bool) -> None:
    """Switch LoRA's own dropout; the base stays in eval mode, as it is served."""
    for name, module in model.named_modules():
        if "lora_dropout" in name:
            module.train(training)


def sharded(batches: Iterator[Batch], accelerator: Accelerator) -> Iterator[Batch]:
    """Every `num_processes`-th batch for each process, on its device: together they see each batch once."""
    mine = itertools.islice(batches, accelerator.process_index, None, accelerator.num_processes)
    return (batch.to(accelerator.device) for batch in mine)
