"""When two answers are the same, and whose answers have to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redraft_ops.bench.answers import Answer, Ask, Block
from redraft_ops.bench.equality import Fork, compare, fork_of, same_texts
from redraft_ops.bench.judging import reference_of

ASKS = {n: Ask(n, (n, n), 8) for n in range(3)}


def gap_of(value: float, seen: list[tuple[Sequence[int], int, int]]):  # type: ignore[no-untyped-def]
    def gap(prefix: Sequence[int], one: int, other: int) -> float:
        seen.append((prefix, one, other))
        return value

    return gap


@pytest.mark.parametrize(
    ("found", "expected", "fork"),
    [
        ((1, 2), (1, 2), None),
        ((1, 2), (1, 3), Fork(0, 1, 2, 3)),
        ((1,), (1, 3), Fork(0, 1, None, 3)),
        ((1, 2), (1,), Fork(0, 1, 2, None)),
    ],
)
def test_forks(found: tuple[int, ...], expected: tuple[int, ...], fork: Fork | None) -> None:
    assert fork_of(found, expected, 0) == fork


def test_a_near_tie_is_rounding_and_a_wide_gap_is_not() -> None:
    own, expected = [Answer(1, (5, 6, 7))], [Answer(1, (5, 9, 7))]
    seen: list[tuple[Sequence[int], int, int]] = []
    near = compare(own, expected, ASKS, 0.1, gap_of(0.05, seen))
    assert (near.equal, near.near_ties, near.different) == (True, 1, ())
    assert seen == [((1, 1, 5), 6, 9)], "the gap is that after the shared beginning"
    wide = compare(own, expected, ASKS, 0.1, gap_of(0.2, seen))
    assert (wide.equal, wide.different) == (False, (Fork(1, 1, 6, 9),))


def test_an_answer_that_ends_early_is_no_tie() -> None:
    assert not compare([Answer(0, (1,))], [Answer(0, (1, 2))], ASKS, 9.0, gap_of(0.0, [])).equal


def test_a_failed_answer_is_not_equal_and_nothing_compared_is_not_either() -> None:
    failed = compare([Answer(0, error="429")], [Answer(0, (1,))], ASKS, 9.0, gap_of(0.0, []))
    assert not failed.equal
    assert not compare([Answer(0, (1,))], [], ASKS, 9.0, gap_of(0.0, [])).equal


def test_texts_of_a_server_without_ids() -> None:
    assert same_texts([Answer(0, text="a"), Answer(1, text="b")], {0: "a", 1: "b"}) is True
    assert same_texts([Answer(0, text="a"), Answer(1, text="b")], {0: "a", 1: "c"}) is False
    assert same_texts([Answer(0, text="a")], {}) is None


@pytest.mark.parametrize(
    ("key", "present", "reference"),
    [
        (("k3", "float32"), "off generate", ("generate", "float32")),
        (("k3", "float32"), "off", ("off", "float32")),
        (("k3", "bfloat16"), "off generate", ("off", "bfloat16")),
        (("assisted", "bfloat16"), "off generate", ("generate", "bfloat16")),
        (("auto", "float32"), "k3", None),
        (("vllm", "as served"), "off generate", ("generate", "float32")),
    ],
)
def test_whose_answers_have_to_be_the_same(
    key: tuple[str, str], present: str, reference: tuple[str, str] | None
) -> None:
    answered: dict[tuple[str, str], list[Block]] = {
        (name, dtype): [] for name in present.split() for dtype in ("float32", "bfloat16")
    }
    assert reference_of(key, {**answered, key: []}) == reference
