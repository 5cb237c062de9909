"""The memory that `redraft doctor` foretells is what the loaded models hold, and it is compared with what is
free.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.cut import write_draft_folder
from redraft_models.fingerprints import tokenizer_fingerprint, weights_fingerprint
from redraft_models.loading import load_pair
from redraft_models.reading import read_tokenizer
from redraft_ops import memory_plan
from redraft_ops.checks import _memory, _run
from redraft_ops.memory_plan import PROCESS, free_bytes, memory_sentence, planned_memory
from redraft_ops.settings import Settings
from redraft_serving.engine.forward.choose import choose_decoder
from redraft_serving.engine.interface import MemoryReport
from redraft_serving.engine.memory import memory_report
from redraft_serving.engine.memory_sums import at_most

CPU = torch.device("cpu")
MIB = 2**20
Pair = Callable[[str], tuple[Path, Path]]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB available and no container's limit."""
    monkeypatch.setattr(memory_plan, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_plan, "CGROUP", tmp_path)
    available(tmp_path, 8 * 1024 * MIB)
    return tmp_path


def available(machine: Path, count: int) -> None:
    text = f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {count // 1024} kB\n"
    (machine / "meminfo").write_text(text)


def settings_of(pair: tuple[Path, Any], cache: Path, slots: int = 4, **models: Any) -> Settings:
    target, draft = pair
    own = {"target": str(target), "draft": str(draft), "max_model_len": 256, "device": "cpu", **models}
    return Settings(models=own, serving={"max_num_seqs": slots, "prefix_cache_mb": 1}, cache_dir=cache)  # type: ignore[arg-type]


def loaded(settings: Settings) -> MemoryReport:
    """The report over the models themselves, as an engine holds them."""
    pair = load_pair(settings.models, settings.cache_dir)
    target = choose_decoder(pair.target.module)
    draft = None if pair.draft is None else choose_decoder(pair.draft.module, pair.draft.head_ids)
    return memory_report(
        pair.target.module,
        [pair.draft.module] if pair.draft else [],
        slots=settings.serving.max_num_seqs,
        max_len=settings.models.max_model_len,
        prefix_cache_limit=1 * MIB,
        extra_target_bytes=target.nbytes,
        extra_draft_bytes=draft.nbytes if draft else 0,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["random", "table"])
def test_the_plan_is_what_is_loaded(toy_pair: Pair, tmp_path: Path, kind: str, dtype: str) -> None:
    settings = settings_of(toy_pair(kind), tmp_path, dtype=dtype)
    assert planned_memory(settings) == loaded(settings)


@pytest.mark.parametrize("head", [None, 12])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_of_a_draft_that_is_cut(
    toy_pair: Pair, tmp_path: Path, dtype: str, head: int | None
) -> None:
    """Its float32 layers are cast as well, what it shares is the target's, and its head may be trimmed."""
    target, _ = toy_pair("random")
    tokenizer = tokenizer_fingerprint(read_tokenizer(target, "toy"))
    write_draft_folder(
        tmp_path / "cut",
        target=str(target),
        target_fingerprint=weights_fingerprint(target),
        tokenizer_fingerprint=tokenizer,
        layers=[0],
        head_ids=None if head is None else torch.arange(head, dtype=torch.int32),
    )
    settings = settings_of((target, tmp_path / "cut"), tmp_path, dtype=dtype)
    plan = planned_memory(settings)
    assert plan == loaded(settings)
    assert plan is not None
    assert plan.draft < plan.target


def test_no_draft(toy_pair: Pair, tmp_path: Path) -> None:
    settings = settings_of((toy_pair("table")[0], "none"), tmp_path)
    assert planned_memory(settings) == loaded(settings)
    assert "the draft costs" not in memory_sentence(settings)


def test_what_is_not_here_is_not_fetched(toy_pair: Pair, tmp_path: Path) -> None:
    target, _ = toy_pair("table")
    for pair in (("nobody/nothing", "none"), (target, "nobody/nothing")):
        settings = settings_of(pair, tmp_path)  # type: ignore[arg-type]
        assert planned_memory(settings) is None
        assert "known once" in memory_sentence(settings)


def test_the_sentence_says_what_is_free(toy_pair: Pair, tmp_path: Path) -> None:
    check = _run("memory", _memory, settings_of(toy_pair("random"), tmp_path))
    assert check.ok
    assert re.search(r"4 slots x .*; the draft costs as much as [\d.]+ slots; 8 GiB are free$", check.found)


def test_too_little_memory_says_how_many_slots_fit(toy_pair: Pair, tmp_path: Path, machine: Path) -> None:
    """The number in the advice is the largest that passes."""
    pair = toy_pair("random")
    available(machine, PROCESS + 16 * MIB)
    check = _run("memory", _memory, settings_of(pair, tmp_path, slots=1000))
    assert not check.ok
    fitting = int(re.search(r"set serving.max_num_seqs to (\d+) or less", check.found)[1])  # type: ignore[index]
    assert _run("memory", _memory, settings_of(pair, tmp_path, slots=fitting)).ok
    assert not _run("memory", _memory, settings_of(pair, tmp_path, slots=fitting + 1)).ok
    available(machine, PROCESS + MIB)
    assert "prefix_cache_mb" in _run("memory", _memory, settings_of(pair, tmp_path)).found


def test_the_limit_of_a_container_counts(machine: Path) -> None:
    assert free_bytes(CPU) == 8 * 1024 * MIB
    (machine / "memory.max").write_text("max\n")
    assert free_bytes(CPU) == 8 * 1024 * MIB
    (machine / "memory.max").write_text(f"{512 * MIB}\n")
    (machine / "memory.stat").write_text(f"anon {112 * MIB}\nfile {300 * MIB}\n")
    assert free_bytes(CPU) == 400 * MIB
    (machine / "meminfo").unlink()
    assert free_bytes(CPU) == 400 * MIB
    (machine / "memory.max").unlink()
    assert free_bytes(CPU) is None


def test_a_machine_that_does_not_tell_fails_no_check(toy_pair: Pair, tmp_path: Path, machine: Path) -> None:
    (machine / "meminfo").unlink()
    settings = settings_of(toy_pair("random"), tmp_path)
    assert memory_sentence(settings).endswith("slots")


def test_a_plan_that_forgets_the_cast_goes_red(
    toy_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(toy_pair("random"), tmp_path, dtype="bfloat16")
    monkeypatch.setattr(memory_plan, "_cast", lambda _module, _dtype: None)
    plan = planned_memory(settings)
    assert plan is not None
    assert abs(at_most(plan) - at_most(loaded(settings))) > 0.05 * at_most(plan)
