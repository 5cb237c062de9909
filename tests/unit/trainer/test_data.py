"""Alignment, padding, split and batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from redraft_queue.records import Sample, Sampling
from redraft_trainer.data import (
    Example,
    build_example,
    build_examples,
    collate,
    limit_tokens,
    scoring_batches,
    some_of,
    training_batches,
)
from redraft_trainer.split import split

from .conftest import law_sample


def one_hot(ids: list[int], size: int = 16) -> np.ndarray:
    return np.eye(size)[ids]


def sample(prompt: list[int], output: list[int], name: str = "r", **kwargs: object) -> Sample:
    """A sample whose law at each position is a one-hot on the token that follows."""
    return law_sample(one_hot(output), prompt, output, name=name, top_k=1, **kwargs)  # type: ignore[arg-type]


def test_position_i_predicts_output_i() -> None:
    example = build_example(sample([3, 4, 5], [6, 7, 8]), 32)
    assert example.input_ids.tolist() == [3, 4, 5, 6, 7]
    batch = collate([example])
    # The input at each loss position is the token just before the one that the law is about.
    assert batch.input_ids_BT.flatten()[batch.loss_index_N].tolist() == [5, 6, 7]
    assert batch.targets.token_N.tolist() == [6, 7, 8]
    assert batch.targets.topk_ids_NK[:, 0].tolist() == [6, 7, 8]


def test_rows_of_different_lengths_keep_their_own_positions() -> None:
    examples = [build_example(sample([3], [4, 5, 6, 7]), 32), build_example(sample([8, 9], [10]), 32)]
    batch = collate(examples)
    assert batch.input_ids_BT.shape == (2, 4)
    assert batch.input_ids_BT.flatten()[batch.loss_index_N].tolist() == [3, 4, 5, 6, 9]
    assert batch.targets.token_N.tolist() == [4, 5, 6, 7, 10]
    assert batch.row_N.tolist() == [0, 0, 0, 0, 1]


def test_a_token_with_the_pad_id_keeps_its_loss() -> None:
    """Padding is written as 0; a real token of id 0, as an end that is its own pad, is trained on all the
    same.
    """
    batch = collate([build_example(sample([0, 3], [4, 0]), 32), build_example(sample([3], [4, 5, 6, 7]), 32)])
    assert batch.targets.token_N.tolist()[:2] == [4, 0]
    assert len(batch.targets) == 6


@pytest.mark.parametrize(
    ("prompt", "output", "limit", "inputs", "tokens"),
    [
        (4, 4, 7, 7, 4),  # fits exactly: the last output token is no input
        (4, 6, 7, 7, 4),  # the output loses its end
        (20, 6, 8, 8, 4),  # the prompt loses its beginning, half of the room is the output's
        (20, 2, 8, 8, 2),
    ],
)
def test_long_samples_are_cut(prompt: int, output: int, limit: int, inputs: int, tokens: int) -> None:
    full = sample([1] * (prompt - 1) + [2], [3 + i for i in range(output)])
    example = build_example(full, limit)
    assert (len(example.input_ids), example.tokens) == (inputs, tokens)
    assert example.input_ids[example.loss_start] == 2
    assert example.targets.token_N.tolist() == [3 + i for i in range(tokens)]


def test_probabilities_of_a_position_sum_to_one() -> None:
    law = np.random.default_rng(0).dirichlet(np.full(16, 0.5), size=5)
    targets = build_example(law_sample(law, [3, 4], [1, 2, 3, 4, 5], top_k=4), 32).targets
    assert torch.allclose(targets.topk_probs_NK.sum(1) + targets.tail_N, torch.ones(5), atol=1e-6)


def test_samples_that_teach_nothing_are_counted() -> None:
    good = sample([3], [4])
    penalised = replace(good, sampling=Sampling(presence_penalty=1.0))
    lawless = replace(good, top_k_logged=0, topk_ids=b"", topk_logprobs=b"")
    examples, skipped = build_examples([good, penalised, lawless, sample([3], [9])], 32, vocab_size=8)
    assert len(examples) == 1
    assert skipped == {"not_reproducible": 1, "no_law": 1, "outside_vocabulary": 1}


def test_a_prompt_never_straddles_the_split_and_shares_are_as_set() -> None:
    samples = [sample([i, j], [3], f"{i}-{j}") for i in range(60) for j in range(60)]
    parts = [split(one, 20, 10) for one in samples]
    assert parts == [split(replace(one, request_id="again", output_ids=(5,)), 20, 10) for one in samples]
    # 3,600 prompts: five standard deviations are 0.034 and 0.024; a false alarm is below 1e-5.
    assert parts.count("heldout") / len(parts) == pytest.approx(0.20, abs=0.034)
    assert parts.count("validation") / len(parts) == pytest.approx(0.08, abs=0.024)


def test_same_seed_same_batches_and_each_example_once_per_epoch() -> None:
    examples = [build_example(sample([3], [4] * (1 + i % 7), f"r{i}"), 32) for i in range(50)]
    first, second = (training_batches(examples, 8, seed=3) for _ in range(2))
    other = training_batches(examples, 8, seed=4)
    seen, differs = 0, False
    for _ in range(7):
        one, two = next(first), next(second)
        assert torch.equal(one.input_ids_BT, two.input_ids_BT)
        differs |= one.input_ids_BT.shape != next(other).input_ids_BT.shape
        seen += len(one.input_ids_BT)
    assert seen == 50
    assert differs


def test_batches_are_padded_tightly() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, size=256)
    examples = [build_example(sample([3], [4] * int(n), f"r{i}"), 256) for i, n in enumerate(lengths)]
    batches = training_batches(examples, 8, seed=0)
    padded = sum(next(batches).input_ids_BT.numel() for _ in range(32))
    assert padded / int(lengths.sum()) < 1.05


def test_scoring_batches_cover_all_within_the_budget() -> None:
    examples = [build_example(sample([3], [4] * (1 + i % 9), f"r{i}"), 32) for i in range(40)]
    batches = list(scoring_batches(examples, token_budget=30))
    assert sorted(i for indices, _ in batches for i in indices) == list(range(40))
    assert all(batch.input_ids_BT.numel() <= 30 for _, batch in batches)


def test_limit_keeps_whole_prompts_and_ignores_the_order() -> None:
    examples = [build_example(sample([3 + i % 5], [4] * 10, f"r{i}"), 32) for i in range(20)]
    kept = limit_tokens(examples, 45)
    assert {one.request_id for one in kept} == {one.request_id for one in limit_tokens(examples[::-1], 45)}
    prompts = {one.prompt_hash for one in kept}
    assert len(kept) == sum(one.prompt_hash in prompts for one in examples) == 8


def test_a_law_that_is_none_is_skipped_before_it_is_divided_by() -> None:
    """One such sample would make the loss of its batch NaN, and every later round of the range fail."""
    good = sample([3, 4], [5, 6], "good")
    impossible = replace(good, request_id="a", topk_logprobs=np.full(2, -np.inf, "<f2").tobytes())
    twice = replace(good, request_id="b", tail_mass=np.full(2, 1.0, "<f2").tobytes())
    examples, skipped = build_examples([impossible, good, twice], 32, 16)
    assert [one.request_id for one in examples] == ["good"]
    assert skipped == {"broken_law": 2}


def test_limited_examples_are_chosen_from_all_and_few_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [sample([3 + i % 5, 4, i], [5, 6, 7], f"r{i}") for i in range(400)]
    everything, _ = build_examples(samples, 32, 400)
    held: list[int] = []

    def watched(examples: list[Example], most: int) -> list[Example]:
        held.append(len(examples))
        return limit_tokens(examples, most)

    monkeypatch.setattr("redraft_trainer.data.limit_tokens", watched)
    chosen, _ = build_examples(samples, 32, 400, most_tokens=60)
    assert [one.request_id for one in chosen] == [one.request_id for one in limit_tokens(everything, 60)]
    assert max(held) <= 2 * 60 / 3 + 1


def test_some_of_many_samples_keep_their_order_and_any_may_be_among_them() -> None:
    samples = [sample([3], [4], str(i)) for i in range(200)]
    assert some_of(samples, 200, 0) == samples
    counts = [0] * 200
    for seed in range(300):
        kept = [int(one.request_id) for one in some_of(iter(samples), 20, seed)]
        assert len(kept) == 20
        assert kept == sorted(kept)
        for number in kept:
            counts[number] += 1
    # Each is drawn 30 times on average with a standard deviation of 5.2; five of these are 1 false alarm in
    # 10,000 for 200 counts.
    assert all(4 <= count <= 56 for count in counts)
