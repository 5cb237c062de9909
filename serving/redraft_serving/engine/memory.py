"""Count the bytes that models and their caches hold. Works on meta tensors too: a plan before anything is
loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from redraft_models.lora import adaptable_linears
from torch import Tensor, nn

from redraft_serving.engine.interface import MemoryReport


def memory_report(
    target: nn.Module,
    drafts: Sequence[nn.Module],
    *,
    slots: int,
    max_len: int,
    prefix_cache: int = 0,
    prefix_cache_limit: int = 0,
    extra_target_bytes: int = 0,
    extra_draft_bytes: int = 0,
) -> MemoryReport:
    """What a pair and its caches hold, in bytes.

    `drafts`: the base draft first, then its copies for domains; none where there is no draft. With the base
    counts the pristine copy of its linear weights that swaps compute from. `slots` rows of `max_len` tokens
    have a place in the caches. The extra bytes are what was made of the weights beside the modules: packed
    copies, a trimmed head. A draft's slots end at its window.
    """
    seen: set[int] = set()
    target_bytes = distinct_bytes(tensors(target), seen) + extra_target_bytes
    draft_bytes = distinct_bytes(chain.from_iterable(map(tensors, drafts)), seen) + extra_draft_bytes
    return MemoryReport(
        target=target_bytes,
        draft=draft_bytes + (pristine_bytes(drafts[0]) if drafts else 0),
        slots=slots,
        target_cache_per_slot=cache_bytes_per_slot(target, max_len),
        draft_cache_per_slot=cache_bytes_per_slot(drafts[0], _places(drafts[0], max_len)) if drafts else 0,
        prefix_cache=prefix_cache,
        prefix_cache_limit=prefix_cache_limit,
    )


def _places(draft: Any, max_len: int) -> int:
    window = getattr(draft.config, "max_position_embeddings", None)
    return max_len if window is None else min(window, max_len)


def tensors(module: nn.Module) -> Iterable[Tensor]:
    """Parameters and buffers."""
    return chain(module.parameters(), module.buffers())


def distinct_bytes(found: Iterable[Tensor], seen: set[int]) -> int:
    """Bytes of the storages behind these tensors, each once. Those in `seen` don't count; new ones are added.

    Two models that share an embedding hold one storage. A meta tensor has no address: it is known by its
    identity.
    """
    total = 0
    for tensor in found:
        storage = tensor.untyped_storage()
        address = id(tensor) if tensor.is_meta else storage.data_ptr()
        if address not in seen:
            seen.add(address)
            total += storage.nbytes()
    return total


def pristine_bytes(draft: nn.Module) -> int:
    """Bytes of the copies that `ServingWeights` keeps of a draft's linear weights."""
    return sum(linear.weight.nbytes for linear in adaptable_linears(draft).values())


def packed_bytes(model: Any, head_rows: int | None = None) -> int:
    """Bytes of a second layout of all linear weights, as packed products hold it.

    `head_rows`: rows of the output head that are packed; None: all.
    """
    total = sum(module.weight.nbytes for module in model.modules() if isinstance(module, nn.Linear))
    if head_rows is None:
        return total
    head = model.get_output_embeddings().weight
    return total - int(head[head_rows:].nbytes)


def cache_bytes_per_slot(model: Any, max_len: int) -> int:
    """Bytes of keys and values of one row: all layers, `max_len` positions and the bin for padding."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers = config.num_hidden_layers * 2 * heads * size * (max_len + 1)
    return int(numbers * model.dtype.itemsize)
