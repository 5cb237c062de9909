"""A draft cut from the target: a few of its layers; embedding, final norm and head are shared, not copied."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from redraft_models.draft_folder import CutRecipe, cut_fingerprint, read_recipe, write_draft_folder
from redraft_models.errors import IncompatiblePair
from redraft_models.lora import Adapter, deltas

__all__ = ["CutRecipe", "cut_fingerprint", "cut_layers", "heal", "read_recipe", "write_draft_folder"]

_PER_LAYER_SETTINGS = ("layer_types", "mlp_layer_types", "no_rope_layers")


def cut_layers(target_module: Any, layers: Sequence[int]) -> Any:
    """A model of the target's class with float32 copies of its decoder layers `layers`; frozen, in eval mode.

    Embedding, final norm and head are the target's own modules, one tensor in memory, in the target's dtype.
    Layer indices are right for a cache by construction. Raises IncompatiblePair for a target that isn't
    Llama-like, or that has no such layers.
    """
    body: Any = getattr(target_module, "model", None)
    if not hasattr(body, "layers") or not hasattr(target_module, "lm_head"):
        raise IncompatiblePair(
            f"{type(target_module).__name__} is not Llama-like (no model.layers or lm_head): it can't be cut"
        )
    _check_layers(layers, len(body.layers))
    with torch.device("meta"):
        cut = type(target_module)(_cut_config(target_module.config, layers))
    for new, index in zip(cut.model.layers, layers, strict=True):
        own = {
            name: value.detach().float().clone() for name, value in body.layers[index].state_dict().items()
        }
        new.load_state_dict(own, assign=True)
    for name, child in body.named_children():
        if name != "layers":
            # Modules without weights (rotary tables) may change while they run: each model has its own.
            has_weights = any(True for _ in child.parameters())
            setattr(cut.model, name, child if has_weights else copy.deepcopy(child))
    cut.lm_head = target_module.lm_head
    return cut.requires_grad_(False).eval()


def _check_layers(layers: Sequence[int], count: int) -> None:
    if not layers or sorted(set(layers)) != list(layers) or layers[0] < 0 or layers[-1] >= count:
        raise IncompatiblePair(
            f"layers {list(layers)} can't be cut from a target of {count} layers; "
            f"give rising numbers from 0 to {count - 1}, each once"
        )


def _cut_config(config: Any, layers: Sequence[int]) -> Any:
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = len(layers)
    for name in _PER_LAYER_SETTINGS:
        values = getattr(config, name, None)
        if isinstance(values, list) and len(values) == config.num_hidden_layers:
            setattr(cut, name, [values[index] for index in layers])
    return cut


@torch.no_grad()
def heal(cut: Any, adapter: Adapter) -> None:
    """Merge a healing adapter into the float32 layers of a cut: once, before any cast to a shorter dtype."""
    parameters = dict(cut.named_parameters())
    for name, delta in deltas(adapter).items():
        parameters[name].add_(delta.to(parameters[name].device))
