"""adapter_config.json: which LoRA it describes, and whether base + scale * BA is all there is to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from redraft_models.errors import AdapterRejected

_PLAIN = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "bias": "none",
}
_MERGED_ELSEWHERE = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "corda_config",
    "lora_ga_config",
    "loftq_config",
    "ensure_weight_tying",
)
"""Options of peft 0.21 under which the merged weight is something else, or the base is altered."""
_BASE_ALTERING_INIT = ("pissa", "olora", "corda", "loftq", "lora_ga", "kasa")


@dataclass(frozen=True)
class LoraShape:
    """What a config implies on one draft."""

    r: int
    lora_alpha: float
    linears: Mapping[str, nn.Linear]
    """Path -> the linear layer that is adapted."""

    def expected(self) -> dict[str, tuple[int, int]]:
        """Name and shape of every tensor that the weights file must hold, without PEFT's prefix."""
        shapes: dict[str, tuple[int, int]] = {}
        for path, linear in self.linears.items():
            shapes[f"{path}.lora_A.weight"] = (self.r, linear.in_features)
            shapes[f"{path}.lora_B.weight"] = (linear.out_features, self.r)
        return shapes


def parse_config(config: Mapping[str, Any], linears: Mapping[str, nn.Linear]) -> LoraShape:
    """Match `config` to a draft's linear layers. Raises AdapterRejected for what we don't merge."""
    for key, wanted in _PLAIN.items():
        if config.get(key) not in (None, wanted):
            raise AdapterRejected(f"{key} is {config[key]!r}; only {wanted!r} can be served")
    unmergeable = next((key for key in _MERGED_ELSEWHERE if config.get(key)), None)
    if unmergeable is not None:
        raise AdapterRejected(f"{unmergeable} is {config[unmergeable]!r}; only plain LoRA can be served")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.startswith(_BASE_ALTERING_INIT):
        raise AdapterRejected(
            f"init_lora_weights {init!r} alters the base weights; only plain LoRA can be served"
        )
    return LoraShape(_rank(config), _alpha(config), _matched(config.get("target_modules"), linears))


def _rank(config: Mapping[str, Any]) -> int:
    r = config.get("r")
    if not isinstance(r, int) or isinstance(r, bool) or r < 1:
        raise AdapterRejected(f"r is {r!r:.40}, which is no rank")
    return r


def _alpha(config: Mapping[str, Any]) -> float:
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not abs(alpha) <= sys.float_info.max:
        raise AdapterRejected(f"lora_alpha is {alpha!r:.40}, which is no finite number")
    return float(alpha)


def _matched(targets: Any, linears: Mapping[str, nn.Linear]) -> dict[str, nn.Linear]:
    """PEFT's rule: a target is the whole path of a layer or a tail of it."""
    if targets == "all-linear":
        return dict(linears)
    if not isinstance(targets, list) or not targets or not all(isinstance(item, str) for item in targets):
        raise AdapterRejected(f"target_modules is {targets!r}; a list of layer names is needed")
    matched: dict[str, nn.Linear] = {}
    for target in targets:
        found = {
            path: linear for path, linear in linears.items() if path == target or path.endswith(f".{target}")
        }
        if not found:
            raise AdapterRejected(f"target module {target!r} matches no adaptable linear layer of this draft")
        matched.update(found)
    return matched
