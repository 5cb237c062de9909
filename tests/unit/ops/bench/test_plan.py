"""What the options of the command mean."""

from __future__ import annotations

import pytest
from redraft_ops.bench.dispatch import mode_of, rates_of
from redraft_ops.bench.plan import BenchPlan, configurations, dtypes_of, levels_of, numbers
from redraft_ops.errors import UsageError


def test_configurations() -> None:
    found = configurations(" off, auto+capture,k3,generate", ["vllm=http://host:8000/v1/"])
    assert [one.name for one in found] == ["off", "auto+capture", "k3", "generate", "vllm"]
    assert [one.kind for one in found] == ["engine", "engine", "engine", "library", "peer"]
    assert [one.setting for one in found[:3]] == [0, "auto", 3]
    assert [one.capture for one in found[:3]] == [False, True, False]
    assert found[4].url == "http://host:8000"


@pytest.mark.parametrize(
    ("compare", "peers", "words"),
    [
        ("off,kx", [], "kx is unknown"),
        ("generate+capture", [], "is unknown"),
        ("off,off", [], "twice"),
        ("", [], "names nothing"),
        ("off", ["vllm"], "NAME=URL"),
        ("off", ["a/b=http://h"], "NAME=URL"),
        ("off", ["off=http://h"], "twice"),
    ],
)
def test_wrong_configurations_are_refused(compare: str, peers: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        configurations(compare, peers)


def test_lists() -> None:
    assert numbers("8,1,8", "--clients") == (1, 8)
    assert levels_of("1,8", None) == (1, 8)
    assert levels_of("1,8", 2.0) == (8,)
    assert rates_of("0.4,0.8") == (0.4, 0.8)
    assert dtypes_of("float32, bfloat16,float32") == ("float32", "bfloat16")


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_wrong_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--clients"):
        numbers(text, "--clients")


@pytest.mark.parametrize("text", ["1.5", "a", "0.5,", "-0.1"])
def test_wrong_acceptances_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--acceptance"):
        rates_of(text)


def test_one_mode_at_a_time() -> None:
    assert mode_of(False, None, False) == "load"
    assert mode_of(True, None, False) == "check-equal"
    with pytest.raises(UsageError, match="two benches"):
        mode_of(True, "0.5", False)


def test_blocks_hold_one_request_alone_and_two_rounds_of_many() -> None:
    plan = BenchPlan(requests=24)
    assert (plan.block_size(1), plan.block_size(8)) == (1, 16)
    assert BenchPlan(requests=4).block_size(8) == 4
    assert BenchPlan(requests=24, block=5).block_size(8) == 5
