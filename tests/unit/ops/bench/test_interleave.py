"""Turns: fair, on the same prompts, and bounded in time."""

from __future__ import annotations

from collections.abc import Sequence

from redraft_ops.bench.answers import Answer, Ask, Block
from redraft_ops.bench.interleave import Lane, blocks_of, rotated, run_interleaved

ASKS = [Ask(index, (index,), 4) for index in range(7)]


class Order:
    """Lanes that note who was asked what."""

    def __init__(self, names: str) -> None:
        self.seen: list[tuple[str, tuple[int, ...]]] = []
        self.lanes = [Lane(name, "float32", self.answering(name)) for name in names]

    def answering(self, name: str):  # type: ignore[no-untyped-def]
        def answer(asks: Sequence[Ask]) -> Block:
            self.seen.append((name, tuple(ask.index for ask in asks)))
            return Block(tuple(Answer(ask.index) for ask in asks), 1.0)

        return answer


def test_every_lane_answers_every_prompt_once() -> None:
    order = Order("abc")
    found = run_interleaved(order.lanes, blocks_of(ASKS, 2), 1e9, lambda: None)
    assert found.complete
    for name in "abc":
        assert [i for who, block in order.seen if who == name for i in block] == list(range(7))
    for blocks in found.blocks:
        assert [[a.index for a in block.answers] for block in blocks] == [[0, 1], [2, 3], [4, 5], [6]]


def test_who_is_first_rotates() -> None:
    order = Order("abc")
    run_interleaved(order.lanes, blocks_of(ASKS[:4], 1), 1e9, lambda: None)
    assert "".join(name for name, _ in order.seen) == "abcbcacababc"
    assert rotated(3, 5) == [2, 0, 1]


def test_time_that_is_up_leaves_whole_turns_only() -> None:
    order = Order("ab")
    ticks = iter(range(100))
    found = run_interleaved(order.lanes, blocks_of(ASKS, 1), 3, lambda: None, lambda: next(ticks))
    assert not found.complete
    assert [len(blocks) for blocks in found.blocks] == [2, 2]
    assert len(order.seen) == 5, "the turn that was begun is dropped"


def test_the_first_turn_is_always_finished() -> None:
    order = Order("ab")
    found = run_interleaved(order.lanes, blocks_of(ASKS, 1), -1, lambda: None)
    assert [len(blocks) for blocks in found.blocks] == [1, 1]
