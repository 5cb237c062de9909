"""Swaps: in place, exact, and without wear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import Adapter, ServingWeights, deltas, read_adapter
from redraft_models.cut import cut_layers
from redraft_models.errors import AdapterRejected
from redraft_models.reading import read_model

BASE = "base-draft-fingerprint"
PROMPTS = torch.randint(3, 64, (20, 24), generator=torch.Generator().manual_seed(5))
AdapterFolder = Callable[..., Path]


@pytest.fixture
def adapters(adapter_folder: AdapterFolder, random_draft: Any) -> tuple[Adapter, Adapter]:
    """Two versions of the random draft."""
    one, two = (read_adapter(adapter_folder(seed, name=f"v{seed}"), random_draft, BASE) for seed in (1, 2))
    return one, two


@torch.no_grad()
def proposals(draft: Any) -> torch.Tensor:
    return draft(PROMPTS).logits.argmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_hundred_swaps_leave_no_trace(
    random_draft: Any, adapters: tuple[Adapter, Adapter], dtype: torch.dtype
) -> None:
    draft = random_draft.to(dtype)
    weights = ServingWeights(draft)
    base, before = weights.checksum(), proposals(draft)
    first = [weights.apply(adapter) for adapter in adapters]
    at_first = proposals(draft)
    for _ in range(100):
        assert [weights.apply(adapter) for adapter in adapters] == first
    assert torch.equal(proposals(draft), at_first)
    assert weights.apply(None) == base == weights.base_checksum
    assert torch.equal(proposals(draft), before)
    assert not torch.equal(at_first, before)


def test_merging_and_unmerging_wears_the_base_down(
    random_draft: Any, adapters: tuple[Adapter, Adapter]
) -> None:
    """The wrong variant of the test above: base + BA - BA, two hundred times in bfloat16."""
    draft = random_draft.to(torch.bfloat16)
    base = ServingWeights(draft).base_checksum
    parameters = dict(draft.named_parameters())
    for _ in range(100):
        for adapter in adapters:
            for sign in (1, -1):
                for name, delta in deltas(adapter).items():
                    parameters[name].add_(sign * delta.to(torch.bfloat16))
    assert ServingWeights(draft).base_checksum != base


def test_a_swap_writes_into_the_same_tensors(random_draft: Any, adapters: tuple[Adapter, Adapter]) -> None:
    pointers = {name: parameter.data_ptr() for name, parameter in random_draft.named_parameters()}
    identities = {name: id(parameter) for name, parameter in random_draft.named_parameters()}
    with torch.inference_mode():
        ServingWeights(random_draft).apply(adapters[0])
    assert {name: parameter.data_ptr() for name, parameter in random_draft.named_parameters()} == pointers
    assert {name: id(parameter) for name, parameter in random_draft.named_parameters()} == identities
    assert not any(parameter.requires_grad for parameter in random_draft.parameters())


def test_the_sum_is_rounded_once(random_draft: Any, adapters: tuple[Adapter, Adapter]) -> None:
    draft = random_draft.to(torch.bfloat16)
    base = {name: parameter.clone() for name, parameter in draft.named_parameters()}
    ServingWeights(draft).apply(adapters[0])
    for name, delta in deltas(adapters[0]).items():
        expected = (base[name].float() + delta).to(torch.bfloat16)
        assert torch.equal(dict(draft.named_parameters())[name], expected)


def test_prepared_weights_change_nothing_until_installed(
    random_draft: Any, adapters: tuple[Adapter, Adapter]
) -> None:
    weights = ServingWeights(random_draft)
    prepared = weights.prepare(adapters[0])
    assert weights.checksum() == weights.base_checksum
    weights.install(prepared)
    assert weights.checksum() == prepared.checksum != weights.base_checksum


def test_the_checksum_is_read_from_the_parameters(
    random_draft: Any, adapters: tuple[Adapter, Adapter]
) -> None:
    weights = ServingWeights(random_draft)
    checksum = weights.apply(adapters[0])
    random_draft.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    assert weights.checksum() != checksum
    assert weights.apply(adapters[0]) == checksum


def test_what_the_target_shares_is_never_written(
    toy_pair: Callable[[str], tuple[Path, Path]], adapter_folder: AdapterFolder
) -> None:
    target = read_model(toy_pair("random")[0], "toy")
    before = {name: parameter.clone() for name, parameter in target.named_parameters()}
    cut = cut_layers(target, [0, 1])
    ServingWeights(cut).apply(read_adapter(adapter_folder(1), cut, BASE))
    for name, parameter in target.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_an_adapter_of_another_shape_changes_nothing(
    toy_pair: Callable[[str], tuple[Path, Path]], adapters: tuple[Adapter, Adapter]
) -> None:
    other = read_model(toy_pair("table")[1], "toy")
    weights = ServingWeights(other)
    with pytest.raises(AdapterRejected):
        weights.apply(adapters[0])
    assert weights.checksum() == weights.base_checksum


def test_a_sum_beyond_the_serving_dtype_is_refused(random_draft: Any, adapter_folder: AdapterFolder) -> None:
    adapter = read_adapter(adapter_folder(1, lora_alpha=4e7), random_draft, BASE)
    weights = ServingWeights(random_draft.to(torch.float16))
    with pytest.raises(AdapterRejected, match=r"not finite in .* as torch.float16"):
        weights.apply(adapter)
    assert weights.checksum() == weights.base_checksum
