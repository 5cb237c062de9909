"""Two tiny random Llamas in which every earlier token matters, so that a wrong cache shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from redraft_models.toy_table import save_model
from redraft_models.toy_tokenizer import EOS_ID

HEAD_SPREAD = 0.4


def write_random_models(
    target: Path, draft: Path, vocabulary: int, disturbance: float, max_positions: int, seed: int
) -> None:
    """Save a random target, and a draft that is the target with relative noise `disturbance` on every weight.

    0 is a copy, inf a stranger of the same shape: another seed.
    """
    model = _random_llama(vocabulary, max_positions, seed)
    save_model(model, target)
    if math.isinf(disturbance):
        model = _random_llama(vocabulary, max_positions, seed + 1)
    else:
        _disturb(model, disturbance, seed + 1)
    save_model(model, draft)


def _random_llama(vocabulary: int, max_positions: int, seed: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0.0, _spread(name, weight.shape[1]), generator=generator)
        # A logit of 0 is never the largest: greedy trials run to their full length.
        model.lm_head.weight[EOS_ID].zero_()
    return model


def _spread(name: str, inputs: int) -> float:
    """Standard deviations that keep activations near 1 and logits a few units apart."""
    if "embed" in name:
        return 1.0
    return HEAD_SPREAD if "lm_head" in name else float(inputs**-0.5)


@torch.no_grad()
def _disturb(model: Any, disturbance: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() == 2:
            noise = torch.empty_like(weight).normal_(0.0, 1.0, generator=generator)
            weight.add_(noise * weight.std() * disturbance)
