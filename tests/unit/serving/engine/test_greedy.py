"""Greedy text equals the target's own, whatever K, batch and neighbours: the random pair, attention alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redraft_models.loading import ModelPair
from redraft_serving.engine import round as round_module

from .conftest import MakePair, Serve
from .oracle import TIE, accepted_per_round, greedy, random_prompts

TOKENS = 64


@pytest.fixture(scope="module")
def pair(make_pair: MakePair) -> ModelPair:
    return make_pair("random", max_model_len=512)


@pytest.fixture(scope="module")
def wanted(pair: ModelPair) -> list[tuple[list[int], list[int]]]:
    """(prompt, the target's own answer) of 50 prompts without near ties."""
    prompts = random_prompts(60, pair.vocab_size, seed=0)
    answers = [(prompt, *greedy(pair.target.module, prompt, TOKENS)) for prompt in prompts]
    clear = [(prompt, answer) for prompt, answer, gap in answers if gap >= TIE]
    assert len(clear) >= 50
    return clear[:50]


def answers(served: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    asked = [served.ask(prompt, TOKENS, ignore_eos=True, **options) for prompt in prompts]
    return [answer.wait(120).ids for answer in asked]


@pytest.mark.parametrize("k", [0, 1, 2, 4, 8])
def test_equals_the_target(
    pair: ModelPair, wanted: list[tuple[list[int], list[int]]], run_engine: Serve, k: int
) -> None:
    served = run_engine(pair, num_speculative_tokens=k, max_num_seqs=8)
    assert answers(served, [prompt for prompt, _ in wanted]) == [answer for _, answer in wanted]


def test_goes_red_when_rejected_tokens_stay(
    pair: ModelPair, wanted: list[tuple[list[int], list[int]]], run_engine: Serve, monkeypatch: Any
) -> None:
    """The wrong variant: a target whose positions drift by one in each pass that verifies."""
    right = round_module.read

    def drifting(
        decoder: Any, cache: Any, slots: Any, tokens: Any, starts: Sequence[int], counts: Any = None
    ) -> Any:
        return right(
            decoder, cache, slots, tokens, [start + (tokens.shape[1] > 2) for start in starts], counts
        )

    monkeypatch.setattr(round_module, "read", drifting)
    served = run_engine(pair, num_speculative_tokens=4, max_num_seqs=8)
    assert answers(served, [prompt for prompt, _ in wanted[:8]]) != [answer for _, answer in wanted[:8]]


def test_neighbours_change_nothing(
    pair: ModelPair, wanted: list[tuple[list[int], list[int]]], run_engine: Serve
) -> None:
    """Rows of different lengths leave and enter all the time; sampled rows run between the greedy ones."""
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=5)
    noise = [served.ask([5, 9], 7 * i + 1, temperature=1.0, seed=i) for i in range(6)]
    got = answers(served, [prompt for prompt, _ in wanted[:16]])
    assert got == [answer for _, answer in wanted[:16]]
    assert all(answer.wait().last.error is None for answer in noise)


def test_rounds_equal_an_oracle_without_caches(pair: ModelPair, run_engine: Serve) -> None:
    """Not only the sum: a rewind that is off by one shows in later rounds."""
    assert pair.draft is not None
    prompt = random_prompts(1, pair.vocab_size, seed=3)[0]
    expected = accepted_per_round(pair.target.module, pair.draft.module, prompt, 100, 5)
    served = run_engine(pair, num_speculative_tokens=5)
    answer = served.ask(prompt, 100, ignore_eos=True).wait()
    sizes = [len(emission.token_ids) for emission in answer.emissions]
    assert [size - 1 for size in sizes] == expected
    assert answer.statistics.accepted == sum(expected)


def test_the_same_prompt_again_has_the_same_rounds(pair: ModelPair, run_engine: Serve) -> None:
    """Others have used its slot since: nothing of theirs is left in the target's cache or the draft's."""
    served = run_engine(pair, num_speculative_tokens=4, max_num_seqs=2)
    prompt, *others = random_prompts(5, pair.vocab_size, seed=8)

    def rounds() -> tuple[list[int], list[int]]:
        answer = served.ask(prompt, 60, ignore_eos=True).wait()
        return answer.ids, [len(emission.token_ids) for emission in answer.emissions]

    first = rounds()
    answers(served, others)
    assert rounds() == first


def test_draft_equal_to_target_accepts_to_the_last_token(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("random", draft_is_target=True), num_speculative_tokens=5)
    for prompt in random_prompts(6, served.pair.vocab_size, seed=4):
        statistics = served.ask(prompt, 200, ignore_eos=True).wait().statistics
        assert statistics.accepted == statistics.tested == statistics.proposed


def test_one_token_prompt_and_full_window(pair: ModelPair, run_engine: Serve) -> None:
    """A prompt of one token works, and an answer that fills the window ends there with 'length'."""
    served = run_engine(pair, num_speculative_tokens=8)
    answer = served.ask([7], 10_000, ignore_eos=True).wait()
    assert answer.last.finish_reason == "length"
    assert len(answer.ids) == pair.max_model_len - 1
    expected, gap = greedy(pair.target.module, [7], 300)
    assert gap < TIE or answer.ids[:300] == expected


def test_a_prompt_longer_than_a_chunk(make_pair: MakePair, run_engine: Serve) -> None:
    pair = make_pair("random", max_model_len=2048)
    prompt = [3 + (i * i) % 50 for i in range(1100)]
    expected, gap = greedy(pair.target.module, prompt, 8)
    assert gap >= TIE
    assert run_engine(pair, num_speculative_tokens=3).ask(prompt, 8, ignore_eos=True).wait().ids == expected


@pytest.mark.parametrize("k", [0, 3])
def test_models_whose_attention_adds_its_mask(
    make_pair: MakePair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """Eager attention adds the mask to its scores: what is hidden has to be hidden there as well."""
    pair = make_pair("random", max_model_len=256)
    assert pair.draft is not None
    for module in (pair.target.module, pair.draft.module):
        monkeypatch.setattr(module.config, "_attn_implementation", "eager")
    served = run_engine(pair, num_speculative_tokens=k, max_num_seqs=4)
    wanted = [(prompt, *greedy(pair.target.module, prompt, 40)) for prompt in random_prompts(4, 64, 3)]
    answers = [(served.ask(prompt, 40, ignore_eos=True), ids) for prompt, ids, gap in wanted if gap >= TIE]
    assert answers
    assert all(answer.wait().ids == ids for answer, ids in answers)
