"""Models whose next-token law is a chosen table.

A one-layer Llama with twice as many hidden dimensions as vocabulary rows. Its attention and MLP outputs are
zero and the embedding is the identity on the first half, so the final norm makes sqrt(2V) e_i of token i, and
the head, whose column i is log-row i over sqrt(2V), answers exactly the log-row. The head's second half reads
dimensions that nothing writes yet: there LoRA on the layer can teach the model any other table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from redraft_models.quiet import quiet_transformers
from redraft_models.toy_tokenizer import EOS_ID

ZERO_LOGIT = -60.0
"""Stands for the log of 0: its probability, 9e-27, is never drawn, and sums with it stay finite."""
NORM_EPS = 1e-12
SPARE_LOGIT = 12.0
"""The most that the spare dimensions can add to one logit: the final norm bounds them."""


def write_table_model(
    folder: Path,
    rows: Tensor,
    padding: tuple[int, float] = (0, 5.0),
    max_positions: int = 4096,
    seed: int = 0,
) -> None:
    """Save a model with softmax(logits after token i) = rows[i], rows [V, V], to about 1e-7.

    `padding`: how many more vocabulary rows there are, which no token has, and their logit everywhere.
    """
    padded_rows, padding_logit = padding
    logits = torch.full((len(rows) + padded_rows,) * 2, padding_logit, dtype=torch.float64)
    logits[:, : len(rows)] = ZERO_LOGIT
    logits[: len(rows), : len(rows)] = rows.log().clamp_min(ZERO_LOGIT)
    model = _llama(len(logits), max_positions, seed)
    _set_law(model, logits)
    save_model(model, folder)


def _llama(vocabulary: int, max_positions: int, seed: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=2 * vocabulary,
        intermediate_size=max(32, 2 * vocabulary),
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=max_positions,
        rms_norm_eps=NORM_EPS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


@torch.no_grad()
def _set_law(model: Any, logits_VV: Tensor) -> None:
    size = len(logits_VV)
    layer = model.model.layers[0]
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    for live in (layer.mlp.gate_proj, layer.mlp.up_proj):
        # The MLP sees sqrt(2V) e_i: this keeps its activations near 1, so that LoRA has a slope to follow.
        live.weight.mul_((2 * size) ** -0.5 / live.weight.std())
    model.model.embed_tokens.weight.zero_()
    model.model.embed_tokens.weight[:, :size].copy_(torch.eye(size))
    model.lm_head.weight[:, :size].copy_(logits_VV.T / (2 * size) ** 0.5)
    model.lm_head.weight[:, size:].copy_(torch.eye(size) * SPARE_LOGIT / (2 * size) ** 0.5)


def save_model(model: Any, folder: Path) -> None:
    """Save a toy as safetensors, with the generation config that names its end token."""
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID)
    with quiet_transformers():
        model.save_pretrained(folder)
