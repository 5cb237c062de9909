"""Which forward pass a model gets: the lean one where it proves itself against the library's own."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from redraft_serving.engine.cache import SlotCache
from redraft_serving.engine.forward.decoder import Decoder, read
from redraft_serving.engine.forward.lean import LeanDecoder
from redraft_serving.engine.forward.library import LibraryDecoder
from redraft_serving.engine.forward.matrix import Matrix

log = logging.getLogger(__name__)

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
TRIAL_TOKENS = 16
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
"""Mean difference of two logits that rounding explains, as a share of the spread of the logits. In bfloat16
the lean pass, whose residual stream is float32, lies nearer to the float32 model than the library's does."""


def choose_decoder(module: Any, head_ids: Tensor | None = None, shared: Decoder | None = None) -> Decoder:
    """The lean pass for a model of its family whose logits agree with the library's; else the library's.

    `head_ids`: the ids that its head scores; None: all. `shared`: a decoder whose head this one uses as well,
    where both have the same weights.
    """
    if not in_family(module):
        log.info("%s is read by the library's own modules", type(module).__name__)
        return LibraryDecoder(module, head_ids)
    return _proven(module, head_ids, shared) or LibraryDecoder(module, head_ids)


def _proven(module: Any, head_ids: Tensor | None, shared: Decoder | None) -> LeanDecoder | None:
    """The lean pass, unless it fails or differs: a model may hide other layers behind a familiar name."""
    name = type(module).__name__
    try:
        lean = LeanDecoder(module, head_ids, _shared_head(module, head_ids, shared))
        difference = trial(module, lean)
    except Exception:
        log.warning("the lean pass of %s failed: not used", name, exc_info=True)
        return None
    if difference <= TOLERANCE.get(module.dtype, 0.0):
        return lean
    log.warning(
        "the lean pass of %s differs from the library's by %.2g of the logits' spread: not used",
        name,
        difference,
    )
    return None


def in_family(module: Any) -> bool:
    """True for the architectures that the lean pass was written for, without their rarer options."""
    config = module.config
    return (
        type(module).__name__ in FAMILY
        and getattr(module.model.rotary_emb, "rope_type", "") == "default"
        and getattr(config, "hidden_act", "") == "silu"
        and not getattr(config, "mlp_bias", False)
        and not _slides(config)
        and getattr(config, "_attn_implementation", "sdpa") == "sdpa"
    )


def _shared_head(module: Any, head_ids: Tensor | None, shared: Decoder | None) -> Matrix | None:
    if head_ids is not None or not isinstance(shared, LeanDecoder):
        return None
    same = module.lm_head.weight is shared.module.lm_head.weight
    return shared.head if same and shared.head_ids is None else None


def _slides(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ()
    return any(kind != "full_attention" for kind in kinds) or (
        not kinds and getattr(config, "sliding_window", None) is not None
    )


@torch.no_grad()
def trial(module: Any, decoder: Decoder) -> float:
    """Mean difference to the library's logits on a few tokens, as a share of their spread."""
    ids = torch.arange(TRIAL_TOKENS, device=module.device)[None] * 7 % module.config.vocab_size
    wanted = module(input_ids=ids).logits.float()
    head_ids = getattr(decoder, "head_ids", None)
    if head_ids is not None:
        wanted = wanted[..., head_ids]
    cache = SlotCache(decoder.layers, 1, TRIAL_TOKENS, module.device)
    half = TRIAL_TOKENS // 2
    found = [
        read(decoder, cache, [0], ids[:, :half], [0]),
        read(decoder, cache, [0], ids[:, half:], [half]),
    ]
    difference = (torch.cat(found, dim=1).float() - wanted).abs().mean()
    # NaN weights are the pair's own fault, and the same in both passes.
    return float(torch.nan_to_num(difference / wanted.std().clamp_min(1e-6)))
