"""Swaps between rounds: no request fails, text stays the target's, every round belongs to one version."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import Adapter, adaptable_linears, read_adapter, write_adapter
from redraft_models.errors import AdapterRejected
from redraft_models.loading import ModelPair
from redraft_serving.engine import local

from .conftest import MakePair, Serve
from .oracle import TIE, greedy, random_prompts


def make_adapter(
    pair: ModelPair, folder: Path, seed: int, size: float = 0.5, dropout: float = 0.0
) -> Adapter:
    """A random adapter of the pair's draft, written and read back as a real one."""
    assert pair.draft is not None
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, linear in adaptable_linears(pair.draft.module).items():
        out, into = linear.weight.shape
        tensors[f"{path}.lora_A.weight"] = torch.randn(4, into, generator=generator) * size
        tensors[f"{path}.lora_B.weight"] = torch.randn(out, 4, generator=generator) * size
    write_adapter(
        folder,
        tensors,
        r=4,
        lora_alpha=4.0,
        target_modules=sorted({name.split(".")[-3] for name in tensors}),
        provenance={"base_draft_fingerprint": pair.draft.fingerprint},
        lora_dropout=dropout,
    )
    return read_adapter(folder, pair.draft.module, pair.draft.fingerprint)


@pytest.fixture
def pair(make_pair: MakePair) -> ModelPair:
    return make_pair("random", max_model_len=512)


def test_swaps_under_eight_streams(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    prompts = [
        (prompt, *greedy(pair.target.module, prompt, 120)) for prompt in random_prompts(9, pair.vocab_size, 7)
    ]
    wanted = [(prompt, answer) for prompt, answer, gap in prompts if gap >= TIE][:8]
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=8)
    streams = [served.ask(prompt, 120, ignore_eos=True) for prompt, _ in wanted]
    adapters = [make_adapter(pair, tmp_path / str(i), seed=i) for i in range(2)]
    checksums = set()
    for version in range(1, 7):
        result = served.engine.swap("default", adapters[version % 2], version).result(30)
        assert result.version == version
        checksums.add(result.checksum)
        [draft] = served.engine.statistics().drafts
        assert (draft.version, draft.checksum) == (version, result.checksum)
    assert len(checksums) == 2, "the same adapter gives the same weights, however often it is swapped in"
    for stream, (_, answer) in zip(streams, wanted, strict=True):
        done = stream.wait()
        assert done.ids == answer
        assert sum(rounds for _, rounds in done.statistics.draft_versions) <= done.statistics.rounds
    seen = {version for stream in streams for version, _ in stream.statistics.draft_versions}
    assert len(seen) > 1, "the swaps fell into the streams"


def test_counts_start_afresh_with_a_version(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    served = run_engine(pair, num_speculative_tokens=3)
    served.ask([5, 6], 30, ignore_eos=True).wait()
    [base] = served.engine.statistics().drafts
    assert base.version == "base"
    assert base.tested > 0
    served.engine.swap("default", make_adapter(pair, tmp_path / "a", 1), 4).result(30)
    [swapped] = served.engine.statistics().drafts
    assert (swapped.version, swapped.tested) == (4, 0)
    assert served.engine.statistics().tested == base.tested, "totals never fall"


def test_many_swaps_leave_the_base_alone(make_pair: MakePair, run_engine: Serve, tmp_path: Path) -> None:
    pair = make_pair("random", max_model_len=512, seed=3)
    served = run_engine(pair, num_speculative_tokens=4)
    prompts = random_prompts(20, pair.vocab_size, seed=9)

    def accepted() -> list[int]:
        return [served.ask(prompt, 24, ignore_eos=True).wait().statistics.accepted for prompt in prompts]

    before = accepted()
    adapters = [make_adapter(pair, tmp_path / str(i), seed=i) for i in range(2)]
    for i in range(40):
        served.engine.swap("default", adapters[i % 2], i + 1).result(30)
    changed = accepted()
    served.engine.swap("default", None, "base").result(30)
    assert accepted() == before
    assert changed != before, "the adapters do change what is proposed"


def test_dropout_of_the_training_is_off_when_serving(
    pair: ModelPair, run_engine: Serve, tmp_path: Path
) -> None:
    """Not only the text, which the target decides, but what the draft proposed is the same each time."""
    served = run_engine(pair, num_speculative_tokens=3)
    adapter = make_adapter(pair, tmp_path / "a", 1, size=0.05, dropout=0.5)
    served.engine.swap("default", adapter, 1).result(30)
    five = [served.ask([5, 9, 17], 60, ignore_eos=True, temperature=1.0, seed=3).wait() for _ in range(5)]
    assert len({tuple(answer.ids) for answer in five}) == 1
    assert len({tuple(answer.statistics.accepted_histogram) for answer in five}) == 1
    assert five[0].statistics.accepted > 0


def test_goes_red_when_dropout_is_left_on(pair: ModelPair, run_engine: Serve) -> None:
    """The wrong variant of the test above: the draft proposes something else each time."""
    assert pair.draft is not None
    layer: Any = pair.draft.module.model.layers[0].mlp
    layer.register_forward_hook(lambda *given: torch.nn.functional.dropout(given[-1], 0.5))
    served = run_engine(pair, num_speculative_tokens=3)
    five = [served.ask([5, 9, 17], 60, ignore_eos=True, temperature=1.0, seed=3).wait() for _ in range(5)]
    assert len({tuple(answer.statistics.accepted_histogram) for answer in five}) > 1


def test_domains_keep_their_own_draft(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=4)
    served.engine.swap("law", make_adapter(pair, tmp_path / "a", 1), 2).result(30)
    prompt = random_prompts(1, pair.vocab_size, 11)[0]
    expected, gap = greedy(pair.target.module, prompt, 60)
    assert gap >= TIE
    both = [served.ask(prompt, 60, ignore_eos=True, domain=domain) for domain in ("law", "default", "law")]
    assert [answer.wait().ids for answer in both] == [expected] * 3
    assert [answer.statistics.draft_versions[0][0] for answer in both] == [2, "base", 2]


def test_a_rotten_adapter_changes_nothing(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    served = run_engine(pair, num_speculative_tokens=3)
    good = make_adapter(pair, tmp_path / "a", 1)
    foreign: Any = {name.replace("layers.0", "layers.7"): tensor for name, tensor in good.tensors.items()}
    paths = tuple(path.replace("layers.0", "layers.7") for path in good.target_modules)
    bad = Adapter(good.r, good.lora_alpha, paths, foreign, good.sha256, good.provenance)
    with pytest.raises(AdapterRejected):
        served.engine.swap("default", bad, 9).result(30)
    answer = served.ask([5, 6], 10).wait()
    assert answer.statistics.draft_versions[0][0] == "base"


def test_a_swap_that_waited_too_long_is_taken_back(
    pair: ModelPair, run_engine: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine meets it later and passes it over; the thread goes on, and so does the next swap."""
    served = run_engine(pair, num_speculative_tokens=3)
    adapter = make_adapter(pair, tmp_path / "a", seed=1)
    between, go_on = threading.Event(), threading.Event()

    def held_up() -> None:
        between.set()
        assert go_on.wait(30)

    with monkeypatch.context() as patch:
        patch.setattr(local, "SWAP_SECONDS", 0.05)
        patch.setattr(served.engine.batch, "guarded_round", held_up)
        answer = served.ask([5, 9], 8, ignore_eos=True)
        assert between.wait(30)
        assert served.engine.swap("default", adapter, 1).cancelled()
    go_on.set()
    assert answer.wait().last.finish_reason == "length"
    assert served.engine.alive
    assert served.engine.swap("default", adapter, 2).result(30).version == 2


def test_what_lived_through_a_swap_and_back_is_not_remembered(
    pair: ModelPair, run_engine: Serve, tmp_path: Path
) -> None:
    """Its draft's keys and values are of two weight sets, although the first one serves again."""
    served = run_engine(pair, num_speculative_tokens=3)
    checksum = served.engine.proposer.serving("default").checksum  # type: ignore[union-attr]
    key = ("draft", checksum, "default")
    remembered = served.engine.parts.prefixes._roots
    adapter = make_adapter(pair, tmp_path / "a", seed=1)
    stream = served.ask([5, 9], 500, ignore_eos=True)
    while not stream.emissions:
        pass
    served.engine.swap("default", adapter, 1).result(30)
    served.engine.swap("default", None, "base").result(30)
    assert not stream.done.is_set(), "the swaps fell into the stream"
    stream.wait()
    assert key not in remembered
    served.ask([5, 9], 100, ignore_eos=True).wait()
    assert key in remembered
