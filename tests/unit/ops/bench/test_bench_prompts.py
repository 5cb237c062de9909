"""Each prompt is used once per configuration, and every configuration gets the same ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redraft_models.loading import load_pair
from redraft_models.settings import ModelSettings
from redraft_ops.bench.plan import BenchPlan
from redraft_ops.bench.prompts import (
    Prompt,
    check_lengths,
    default_prompts,
    file_prompts,
    prompt_sets,
    replayed_prompts,
)
from redraft_ops.errors import UsageError
from redraft_queue.records import Sample, ids_to_bytes
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect


def prompts(count: int) -> list[Prompt]:
    return [Prompt((n, n + 1), f"text {n}") for n in range(count)]


@pytest.fixture(scope="module")
def tokenizer(toy_pair: Callable[[str], tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    target, _ = toy_pair("learn")
    models = ModelSettings(target=str(target), draft="none")
    return load_pair(models, tmp_path_factory.mktemp("cache")).tokenizer


def test_no_prompt_is_repeated_within_a_configuration() -> None:
    sets = prompt_sets(prompts(30), BenchPlan(requests=10, clients=(1, 8), warm_up=4))
    used = [ask.ids for asks in (*sets.by_clients.values(), sets.warm_up) for ask in asks]
    assert len(used) == len(set(used)) == 10 + 10 + 8
    assert {ask.index for ask in sets.warm_up}.isdisjoint(range(30))


def test_with_fewer_prompts_all_numbers_of_clients_have_the_same_ones() -> None:
    sets = prompt_sets(prompts(12), BenchPlan(requests=10, clients=(1, 8), warm_up=2))
    assert sets.by_clients[1] == sets.by_clients[8]
    warm = [ask.ids for ask in sets.warm_up]
    assert len(warm) == len(set(warm)) == 8
    assert set(warm).isdisjoint(ask.ids for ask in sets.by_clients[1])


def test_a_prompt_that_stands_twice_is_used_once() -> None:
    with pytest.raises(UsageError, match="10 different prompts and 11 requests"):
        prompt_sets(prompts(10) * 2, BenchPlan(requests=11))


def test_seeds_and_domains() -> None:
    sets = prompt_sets(
        [Prompt((1,), "a", "own"), Prompt((2,), "b")], BenchPlan(requests=2, seed=5, warm_up=0), "other"
    )
    assert [ask.domain for ask in sets.by_clients[1]] == ["own", "other"]
    assert [ask.seed for ask in sets.by_clients[1]] == [5, 6]
    assert sets.warm_up == []


def test_replay_takes_the_lengths_that_traffic_had() -> None:
    found = [Prompt((1,), None, "d", 17), Prompt((2,), None, "d", 3)]
    sets = prompt_sets(found, BenchPlan(requests=2, max_tokens=64), replay=True)
    assert [(ask.max_tokens, ask.ignore_eos) for ask in sets.by_clients[1]] == [(17, True), (3, True)]


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    sets = prompt_sets([Prompt(tuple(range(100)), "long")], BenchPlan(requests=1, max_tokens=64))
    check_lengths(sets, 164)
    with pytest.raises(UsageError, match="max_model_len"):
        check_lengths(sets, 163)


def test_a_file_of_prompts(tokenizer: Any, tmp_path: Path) -> None:
    lines = [{"prompt": "a1 b2"}, {"prompt": "c3", "domain": "legal", "more": 1}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    first, second = file_prompts(path, tokenizer)
    assert (first.text, first.domain, second.domain) == ("a1 b2", None, "legal")
    assert tokenizer.decode(first.ids).count("a1") == 1


@pytest.mark.parametrize(
    "line", ["not json", "[1]", '"text"', '{"text": "a"}', '{"prompt": 3}', '{"prompt": ""}',
             '{"prompt": "a", "domain": "no/name"}'],
)  # fmt: skip
def test_a_wrong_line_is_named(tokenizer: Any, tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a1"}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        file_prompts(path, tokenizer)


def test_a_missing_file_is_a_usage_error(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        file_prompts(tmp_path / "none.jsonl", tokenizer)


def test_default_prompts_are_different(tokenizer: Any) -> None:
    found = default_prompts(tokenizer, 20, seed=1)
    assert len({prompt.text for prompt in found}) == 20


def sample(number: int, prompt: tuple[int, ...], emitted: int, tokenizer: str = "tok") -> Sample:
    return Sample(
        request_id=f"r{number}",
        domain="d",
        created_ms=1_700_000_000_000,
        target_fingerprint="target",
        tokenizer_fingerprint=tokenizer,
        prompt_ids=prompt,
        output_ids=tuple(range(emitted)),
        topk_ids=ids_to_bytes(range(emitted)),
        topk_logprobs=struct.pack(f"<{emitted}e", *[-0.5] * emitted),
        tail_mass=struct.pack(f"<{emitted}e", *[0.25] * emitted),
        top_k_logged=1,
    )


@pytest.mark.integration
def test_prompts_of_a_stream(redis_url: str) -> None:
    """The newest ones, each prompt once, none of another tokenizer; and nothing becomes a dead letter."""
    settings = QueueSettings()
    stream = SampleStream(connect(redis_url, settings), settings)
    stream.append([sample(n, (n % 5, 9), n + 1) for n in range(8)])
    stream.append([sample(99, (7, 7), 2, tokenizer="another")])
    found = replayed_prompts(stream, "d", "tok", 3)
    assert [(prompt.ids, prompt.max_tokens) for prompt in found] == [((2, 9), 3), ((3, 9), 4), ((4, 9), 5)]
    assert stream.dead_length("d") == 0
