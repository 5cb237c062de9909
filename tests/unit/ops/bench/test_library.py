"""transformers' own decoding on toy pairs: the same tokens by every way, and times of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from redraft_models.loading import ModelPair
from redraft_models.quiet import quiet_transformers
from redraft_models.settings import ModelSettings
from redraft_ops.bench.answers import Ask
from redraft_ops.bench.library import Library, logit_gap
from redraft_ops.bench.library_process import LibraryProcess
from redraft_ops.errors import BenchFailed

WAYS = ("generate", "assisted", "continuous_batching")
MakeAsks = Callable[..., list[Ask]]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode(), quiet_transformers():
        yield


def greedy(pair: ModelPair, ask: Ask) -> tuple[int, ...]:
    """One forward pass per token over the whole text: nothing cached, nothing padded."""
    ids = list(ask.ids)
    for _ in range(ask.max_tokens):
        ids.append(int(pair.target.module(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in pair.eos_token_ids and not ask.ignore_eos:
            break
    return tuple(ids[len(ask.ids) :])


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_target_s_own_tokens(
    load_toy: Callable[[str], ModelPair], make_asks: MakeAsks, way: str, clients: int
) -> None:
    pair, asks = load_toy("random"), make_asks(5, 12)
    asks[1] = replace(asks[1], ids=asks[1].ids * 3, max_tokens=7)
    library = Library(pair, 3)
    for _ in range(2):
        block = getattr(library, way)(asks, clients)
        assert [answer.ids for answer in block.answers] == [greedy(pair, ask) for ask in asks]
        for answer in block.answers:
            assert answer.tokens == len(answer.ids)
            assert answer.first_token is not None
            assert 0 < answer.first_token <= answer.seconds


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_answers_stop_at_the_end_token(
    load_toy: Callable[[str], ModelPair], way: str, ignore_eos: bool
) -> None:
    """a -> b -> c -> d -> <eos>: rows of a batch end at different places."""
    pair = load_toy("chain")
    words = pair.tokenizer.convert_tokens_to_ids(["a", "b", "c"])
    asks = [Ask(n, (word,), 9, ignore_eos=ignore_eos) for n, word in enumerate(words)]
    answers = getattr(Library(pair, 3), way)(asks, 3).answers
    assert [answer.ids for answer in answers] == [greedy(pair, ask) for ask in asks]
    assert [len(answer.ids) for answer in answers] == ([9, 9, 9] if ignore_eos else [4, 3, 2])
    assert all(answer.tokens == len(answer.ids) for answer in answers)


def test_continuous_batching_runs_as_many_as_asked(
    load_toy: Callable[[str], ModelPair], make_asks: MakeAsks
) -> None:
    """The model keeps its last manager: after a turn with one client, four must really run together."""
    library, asks = Library(load_toy("random"), 3), make_asks(4, 24)
    library.continuous_batching(asks, 1)
    together = library.continuous_batching(asks, 4).answers
    last_start = max(answer.chunks[0][0] for answer in together)
    assert last_start < min(answer.seconds for answer in together)


def test_assisted_generation_counts_what_it_accepted(
    load_toy: Callable[[str], ModelPair], make_asks: MakeAsks
) -> None:
    pair = load_toy("random")
    assert pair.draft is not None
    own = replace(pair, draft=replace(pair.draft, module=pair.target.module))
    (answer,) = Library(own, 3).assisted(make_asks(1, 16), 1).answers
    assert answer.accepted == answer.tested > 0, "a draft that is the target is always right"
    assert [tokens for _, tokens in answer.chunks] == [4, 4, 4, 4]


def test_sampling_is_seeded(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks) -> None:
    asks = [replace(ask, temperature=1.0, seed=7) for ask in make_asks(2, 12)]
    library = Library(load_toy("learn"), 3)
    first, again = (library.generate(asks, 2).answers for _ in range(2))
    other = library.generate([replace(ask, seed=8) for ask in asks], 2).answers
    assert [a.ids for a in first] == [a.ids for a in again] != [a.ids for a in other]


def test_the_gap_of_two_logits(load_toy: Callable[[str], ModelPair]) -> None:
    module = load_toy("random").target.module
    logits = module(torch.tensor([[3, 4, 5]])).logits[0, -1]
    assert logit_gap(module, (3, 4, 5), 7, 9) == pytest.approx(float((logits[7] - logits[9]).abs()), abs=1e-5)


def test_a_process_of_its_own(
    load_toy: Callable[[str], ModelPair],
    toy_pair: Callable[[str], tuple[Path, Path]],
    make_asks: MakeAsks,
    tmp_path: Path,
) -> None:
    target, draft = toy_pair("random")
    models = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=512)
    asks = make_asks(2, 8)
    with LibraryProcess(models, tmp_path, 3, 1) as library:
        block = library.run("generate", asks, 2)
        assert [answer.ids for answer in block.answers] == [greedy(load_toy("random"), ask) for ask in asks]
        assert library.gap((3, 4), 5, 5) == 0.0
        with pytest.raises(BenchFailed, match="transformers failed in no_such_way"):
            library.run("no_such_way", asks, 2)
        assert len(library.run("assisted", asks, 1).answers) == 2, "a failed call does not end it"


def test_a_process_that_cannot_load_says_why(make_asks: MakeAsks, tmp_path: Path) -> None:
    with (
        LibraryProcess(ModelSettings(target=str(tmp_path)), tmp_path, 3, 1) as library,
        pytest.raises(BenchFailed, match="SourceError"),
    ):
        library.run("generate", make_asks(1), 1)
