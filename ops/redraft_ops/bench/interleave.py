"""Configurations take turns, block by block: a machine that slows down slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from redraft_ops.bench.answers import Ask, Block

Answering = Callable[[Sequence[Ask]], Block]
T = TypeVar("T")


@dataclass(frozen=True)
class Lane:
    """One configuration in the run."""

    name: str
    dtype: str
    answer: Answering


@dataclass(frozen=True)
class Interleaved:
    """Blocks by lane, in the order of the lanes; all lanes have answered the same prompts."""

    blocks: tuple[tuple[Block, ...], ...]
    complete: bool
    """False where the time was up before all prompts were used."""


def blocks_of(asks: Sequence[T], size: int) -> list[Sequence[T]]:
    """The requests in blocks of `size`; the last may be smaller."""
    return [asks[start : start + size] for start in range(0, len(asks), size)]


def rotated(count: int, turn: int) -> list[int]:
    """Places 0 to count - 1 beginning at `turn`: nobody is always first."""
    return [(turn + place) % count for place in range(count)]


def run_interleaved(
    lanes: Sequence[Lane],
    blocks: Sequence[Sequence[Ask]],
    deadline: float,
    told: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> Interleaved:
    """Every lane answers every block, in an order that rotates.

    Past `deadline` (a reading of `clock`) no lane begins; a turn that not all lanes have finished is dropped.
    The first turn is always finished, so that there is something to report.
    """
    done: list[list[Block]] = [[] for _ in lanes]
    for turn, block in enumerate(blocks):
        found: dict[int, Block] = {}
        for place in rotated(len(lanes), turn):
            if turn and clock() >= deadline:
                return Interleaved(tuple(map(tuple, done)), complete=False)
            found[place] = lanes[place].answer(block)
            told()
        for place, one in found.items():
            done[place].append(one)
    return Interleaved(tuple(map(tuple, done)), complete=True)
