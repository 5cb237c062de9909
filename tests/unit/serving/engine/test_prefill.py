"""Prompts read in chunks between rounds, and beginnings that are known already."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redraft_models.loading import ModelPair

from .conftest import MakePair, Serve, Served
from .oracle import TIE, accepted_per_round, greedy, random_prompts
from .test_swap import make_adapter

PROMPT = [5, 9, 17]


@pytest.fixture(scope="module")
def pair(make_pair: MakePair) -> ModelPair:
    return make_pair("random", max_model_len=512)


@pytest.fixture(scope="module")
def long_prompt(pair: ModelPair) -> tuple[list[int], list[int]]:
    """A prompt of 300 tokens and its answer of 24."""
    ids = [token for prompt in random_prompts(60, 61, seed=5, longest=12) for token in prompt][:300]
    answer, gap = greedy(pair.target.module, ids, 24)
    assert len(ids) == 300
    assert gap >= TIE
    return ids, answer


def watched(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the inference thread does, in order: "round" or "chunk N"."""
    done: list[str] = []
    batch = served.engine.batch
    run, read = batch.rounds.run, batch.prefill.read

    def counted_run(rows: Any) -> Any:
        done.append("round")
        return run(rows)

    def counted_read(row: Any) -> bool:
        before = row.length
        ended = read(row)
        done.append(f"chunk {row.length - before}")
        return ended

    monkeypatch.setattr(batch.rounds, "run", counted_run)
    monkeypatch.setattr(batch.prefill, "read", counted_read)
    return done


def test_a_long_prompt_lets_others_go_on(
    pair: ModelPair,
    long_prompt: tuple[list[int], list[int]],
    run_engine: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Never two chunks without a round between them, and the answers are the oracle's."""
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=3, prefill_chunk=32, prefix_cache_mb=0)
    done = watched(served, monkeypatch)
    running = [served.ask(PROMPT, 400, ignore_eos=True) for _ in range(2)]
    while "round" not in done:
        pass
    ids, answer = long_prompt
    late = served.ask(ids, 24, ignore_eos=True).wait()
    assert late.ids == answer
    for one in running:
        served.engine.cancel("request-1")
        served.engine.cancel("request-2")
        one.wait()
    chunks = [index for index, what in enumerate(done) if what.startswith("chunk")]
    sizes = [int(done[index].split()[1]) for index in chunks]
    assert max(sizes) <= 32
    assert sum(sizes) == 2 + 2 + 299
    between = [done[a + 1 : b].count("round") for a, b in pairwise(chunks[2:])]
    assert all(count >= 1 for count in between)
    assert len(between) == 9


def test_a_repeated_beginning_is_not_read_again(
    pair: ModelPair, long_prompt: tuple[list[int], list[int]], run_engine: Serve
) -> None:
    """Target and draft both: the same text, the same accepted counts, as many as without any cache."""
    ids, answer = long_prompt
    served = run_engine(pair, num_speculative_tokens=3)
    first, second = (served.ask(ids, 24, ignore_eos=True).wait() for _ in range(2))
    assert first.ids == second.ids == answer
    assert (first.statistics.cached_tokens, second.statistics.cached_tokens) == (0, 288)
    assert served.engine.statistics().cached_prompt_tokens == 288
    assert first.statistics.accepted_histogram == second.statistics.accepted_histogram
    assert pair.draft is not None
    kept = accepted_per_round(pair.target.module, pair.draft.module, ids, 24, 3)
    assert sum(kept) == second.statistics.accepted


def test_a_domain_finds_none_of_anothers_beginnings(
    pair: ModelPair, long_prompt: tuple[list[int], list[int]], run_engine: Serve
) -> None:
    """Its own it does; of the others a client could tell, by `cached_tokens`, what they have asked."""
    served = run_engine(pair)
    cached = [
        served.ask(long_prompt[0], 4, domain=domain).wait().statistics.cached_tokens
        for domain in ("law", "medicine", "law", "medicine")
    ]
    assert cached == [0, 0, 288, 288]
    kept = served.engine.proposer.prefixes._roots  # type: ignore[union-attr]
    domains = [(key[0], key[-1]) for key in kept]
    assert sorted(domains) == [
        (model, domain) for model in ("draft", "target") for domain in ("law", "medicine")
    ]


def test_after_a_swap_the_draft_reads_what_only_the_target_knows(
    pair: ModelPair, long_prompt: tuple[list[int], list[int]], run_engine: Serve, tmp_path: Path
) -> None:
    """Else the row would decode plainly to its end: the draft would never come near enough to propose."""
    ids, answer = long_prompt
    served = run_engine(pair, num_speculative_tokens=3, prefill_chunk=32)
    served.ask(ids, 24, ignore_eos=True).wait()
    served.engine.swap("default", make_adapter(pair, tmp_path / "a", seed=1, size=0.05), 1).result(30)
    second = served.ask(ids, 24, ignore_eos=True).wait()
    assert second.ids == answer
    assert second.statistics.cached_tokens == 288
    assert second.statistics.draft_versions[0][0] == 1
    assert pair.draft is not None
    module = served.engine.proposer.serving("default").module  # type: ignore[union-attr]
    kept = accepted_per_round(pair.target.module, module, ids, 24, 3)
    assert sum(kept) == second.statistics.accepted


def test_an_answer_is_a_known_beginning_of_the_next_turn(pair: ModelPair, run_engine: Serve) -> None:
    served = run_engine(pair, num_speculative_tokens=0)
    first = served.ask(PROMPT, 70, ignore_eos=True).wait()
    turn = [*PROMPT, *first.ids, 12, 13]
    second = served.ask(turn, 8, ignore_eos=True).wait()
    assert second.statistics.cached_tokens == 64
    assert second.ids == greedy(pair.target.module, turn, 8)[0]


def test_a_rotten_row_is_not_remembered(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = run_engine(pair, num_speculative_tokens=0)
    right = served.engine.parts.target.logits
    prompt = [7] * 70

    def poisoned(*args: Any) -> Any:
        return right(*args).fill_(float("nan"))

    with monkeypatch.context() as patch:
        patch.setattr(served.engine.parts.target, "logits", poisoned)
        assert served.ask(prompt, 8).wait().last.finish_reason == "error"
    assert served.engine.parts.prefixes.bytes == 0
    assert served.ask(prompt, 8, ignore_eos=True).wait().ids == greedy(pair.target.module, prompt, 8)[0]
    assert served.engine.parts.prefixes.bytes > 0


def test_a_prompt_that_is_cancelled_while_it_is_read(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = run_engine(pair, num_speculative_tokens=3, prefill_chunk=16, prefix_cache_mb=0)
    running = served.ask(PROMPT, 300, ignore_eos=True)
    done = watched(served, monkeypatch)
    late = served.ask([4] * 400, 8, ignore_eos=True)
    while not any(what.startswith("chunk") for what in done):
        pass
    served.engine.cancel("request-2")
    assert late.wait().last.finish_reason == "abort"
    assert running.wait().ids == greedy(pair.target.module, PROMPT, 300)[0]
    assert served.engine.statistics().running == 0
