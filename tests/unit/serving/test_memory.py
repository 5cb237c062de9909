"""What is reported is what the tensors hold: summed here by another way, over real modules and caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from redraft_models.adapter import ServingWeights
from redraft_models.cut import cut_layers
from redraft_models.loading import ModelPair, load_pair
from redraft_models.lora import adaptable_linears
from redraft_models.settings import ModelSettings
from redraft_serving.engine.interface import MemoryReport
from redraft_serving.engine.memory import cache_bytes_per_slot, distinct_bytes, memory_report, packed_bytes
from redraft_serving.engine.memory_sums import at_most, caches, describe, draft_slots, held, size
from torch import Tensor
from transformers import DynamicCache

MIB = 2**20
Load = Callable[..., ModelPair]


@pytest.fixture
def load(toy_pair: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> Load:
    """A toy pair; `dtype` as in the settings."""

    def load(kind: str = "random", dtype: Any = "float32") -> ModelPair:
        target, draft = toy_pair(kind)
        settings = ModelSettings(target=str(target), draft=str(draft), dtype=dtype, device="cpu")
        return load_pair(settings, tmp_path)

    return load


def bytes_of(*held: Iterable[Tensor]) -> int:
    """Sum over different memory, told apart by where it begins and how long it is."""
    places = {(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for part in held for t in part}
    return sum(length for _, length in places)


def close(reported: int, real: int) -> bool:
    return abs(reported - real) <= 0.05 * real


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["random", "table"])
def test_a_pair_is_what_its_tensors_hold(load: Load, kind: str, dtype: str) -> None:
    """Weights with the pristine copies of the draft, and the cache that a forward pass allocates."""
    pair = load(kind, dtype)
    target, draft = pair.target.module, pair.draft.module  # type: ignore[union-attr]
    swaps = ServingWeights(draft)
    report = memory_report(target, [draft], slots=3, max_len=64)
    assert close(report.target, bytes_of(target.parameters(), target.buffers()))
    assert close(report.draft, bytes_of(draft.parameters(), draft.buffers(), swaps._base.values()))
    for model, per_slot in ((target, report.target_cache_per_slot), (draft, report.draft_cache_per_slot)):
        assert per_slot == real_cache_bytes(model, 64)


def test_a_drafts_slots_end_at_its_window(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = load()
    target, draft = pair.target.module, pair.draft.module  # type: ignore[union-attr]
    monkeypatch.setattr(draft.config, "max_position_embeddings", 16)
    report = memory_report(target, [draft], slots=1, max_len=64)
    assert report.draft_cache_per_slot == cache_bytes_per_slot(draft, 16)
    assert report.target_cache_per_slot == cache_bytes_per_slot(target, 64)


def real_cache_bytes(model: Any, max_len: int) -> int:
    """Of the library's own cache after a pass over `max_len` + 1 tokens."""
    cache = DynamicCache(config=model.config)
    tokens = torch.full((1, max_len + 1), 3)
    model(tokens, attention_mask=torch.ones_like(tokens), cache=cache, use_cache=True)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def test_what_draft_and_target_share_counts_once_as_the_targets(load: Load) -> None:
    """Embedding, norm and head of a cut are the target's own tensors."""
    target = load().target.module
    cut = cut_layers(target, [0])
    own = bytes_of(cut.model.layers.parameters(), cut.model.rotary_emb.buffers())
    report = memory_report(target, [cut], slots=1, max_len=8)
    assert report.draft == own + bytes_of(ServingWeights(cut)._base.values())
    assert report.target == bytes_of(target.parameters(), target.buffers())
    every = bytes_of(target.parameters(), cut.parameters())
    apart = distinct_bytes(target.parameters(), set()) + distinct_bytes(cut.parameters(), set())
    assert apart > 1.1 * every, "counting each model alone would go unnoticed"


def test_a_copy_for_a_domain_costs_its_layers(load: Load) -> None:
    """The pristine weights are those of the base, whatever the number of copies."""
    target = load().target.module
    base, copy = cut_layers(target, [0]), cut_layers(target, [0])
    one = memory_report(target, [base], slots=1, max_len=8)
    two = memory_report(target, [base, copy], slots=1, max_len=8)
    assert two.draft - one.draft == bytes_of(copy.model.layers.parameters(), copy.model.rotary_emb.buffers())
    assert (two.target, two.draft_cache_per_slot) == (one.target, one.draft_cache_per_slot)


@pytest.mark.parametrize("rows", [None, 10])
def test_packed_weights(load: Load, rows: int | None) -> None:
    """Every linear weight once more; of the head the rows that are scored."""
    module = load().target.module
    layers = sum(linear.weight.nbytes for linear in adaptable_linears(module).values())
    assert packed_bytes(module, rows) == layers + module.lm_head.weight[:rows].nbytes


def test_a_plan_on_meta_tensors_is_the_same_as_the_loaded_models(load: Load) -> None:
    pair = load()
    target, cut = pair.target.module, cut_layers(pair.target.module, [0])
    with torch.device("meta"):
        planned_target = type(target)(target.config)
    planned_cut = cut_layers(planned_target, [0])
    expected = memory_report(target, [cut], slots=4, max_len=32)
    assert memory_report(planned_target, [planned_cut], slots=4, max_len=32) == expected


def test_without_a_draft(load: Load) -> None:
    report = memory_report(load().target.module, [], slots=2, max_len=8, extra_target_bytes=1000)
    assert (report.draft, report.draft_cache_per_slot, draft_slots(report)) == (0, 0, 0)
    assert held(report) == report.target + 2 * report.target_cache_per_slot
    assert "draft" not in describe(report)


def test_extra_bytes_are_added(load: Load) -> None:
    pair = load()
    modules = pair.target.module, [pair.draft.module]  # type: ignore[union-attr]
    plain = memory_report(*modules, slots=1, max_len=8)
    more = memory_report(*modules, slots=1, max_len=8, extra_target_bytes=7, extra_draft_bytes=5)
    assert (more.target - plain.target, more.draft - plain.draft) == (7, 5)


def test_a_head_per_query_and_no_head_size_in_the_config(load: Load) -> None:
    """Configs that name neither key/value heads nor a head size."""
    config = load().target.module.config
    layers, hidden = config.num_hidden_layers, config.hidden_size
    plain = SimpleNamespace(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=2)
    model = SimpleNamespace(dtype=torch.bfloat16, config=plain)
    assert cache_bytes_per_slot(model, 9) == layers * 2 * hidden * 10 * 2


REPORT = MemoryReport(
    target=500 * MIB,
    draft=30 * MIB,
    slots=8,
    target_cache_per_slot=90 * MIB,
    draft_cache_per_slot=12 * MIB,
    prefix_cache=16 * MIB,
    prefix_cache_limit=256 * MIB,
)


def test_sums() -> None:
    assert caches(REPORT) == 8 * 102 * MIB
    assert held(REPORT) == (500 + 30 + 816 + 16) * MIB
    assert at_most(REPORT) == (500 + 30 + 816 + 256) * MIB
    assert draft_slots(REPORT) == pytest.approx((30 + 96) / 90)
    assert draft_slots(MemoryReport()) is None


def test_the_sentence_names_every_part() -> None:
    text = describe(REPORT)
    assert text == (
        "target 500 MiB, draft 30 MiB, caches 8 slots x 90 MiB + 12 MiB, prefix cache up to 256 MiB: "
        "1.6 GiB in all; the draft costs as much as 1.4 slots"
    )
    numbers = [float(number) for number in re.findall(r"([\d.]+) MiB", text)]
    assert close(
        round(numbers[0] + numbers[1] + 8 * (numbers[2] + numbers[3]) + numbers[4]), round(1.6 * 1024)
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (513.2 * MIB, "513 MiB"), (3 * 2**50, "3072 TiB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
