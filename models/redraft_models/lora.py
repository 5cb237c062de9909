"""What a LoRA adapter is here: a low-rank pair per linear layer of the base draft (Hu et al. 2021, eq. 3).

Legend: r rank, I inputs and O outputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PROVENANCE_FILE = "provenance.json"
ADAPTER_FOLDER = "adapter"
PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that passed every check of `read_adapter`."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...]
    """Paths of the adapted linear layers inside the draft, sorted."""
    tensors: Mapping[str, Tensor] = field(repr=False)
    """`<path>.lora_A.weight` [r, I] and `<path>.lora_B.weight` [O, r], float32 on the CPU."""
    sha256: str
    """Of the file `adapter_model.safetensors`."""
    provenance: Mapping[str, Any]
    version: int | None = None
    """The registry's version number, where it came from there."""
    head_ids: Tensor | None = None
    """int32 [S] on the CPU, ascending: the ids that this version's head scores (`laws.restrict`); None is
    the full head. It belongs to the version: base drafts have their own.
    """

    @property
    def scale(self) -> float:
        """The factor on B @ A."""
        return self.lora_alpha / self.r


def deltas(adapter: Adapter) -> dict[str, Tensor]:
    """What the adapter adds to each weight: `<path>.weight` -> scale * B @ A, [O, I] float32 on the CPU."""
    return {
        f"{path}.weight": adapter.tensors[f"{path}.lora_B.weight"]
        @ adapter.tensors[f"{path}.lora_A.weight"]
        * adapter.scale
        for path in adapter.target_modules
    }


def adaptable_linears(draft_module: Any) -> dict[str, nn.Linear]:
    """The linear layers of a draft that an adapter may touch, by path.

    The output head stays out: it is one tensor with the target's (or with the embedding), and PEFT's
    "all-linear" leaves it out as well.
    """
    head = draft_module.get_output_embeddings()
    return {
        name: module
        for name, module in draft_module.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
