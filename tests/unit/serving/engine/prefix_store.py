"""A store whose content tells which beginning it was computed from, and a prefix cache's properties over it.

Each property is a function that takes the class, so that a wrong variant can be shown to break it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from redraft_serving.engine.prefix import PrefixCache, Tokens, _Block
from torch import Tensor

BLOCK, SLOTS, POSITIONS = 4, 3, 40
SIZE = 2 * BLOCK * 8
"""Bytes of one block of `Store`: key and value of each position, int64."""
Make = Callable[[int], PrefixCache]


class Store:
    """One layer, one head, sizes of one: key and value of a position are functions of all tokens up to it,
    and of the model, as a real model's are.
    """

    def __init__(self, model: Hashable = "target") -> None:
        self.model = model
        self.content = torch.zeros(2, SLOTS, POSITIONS, dtype=torch.long)
        self.reads = 0

    def states(self, tokens: Sequence[int]) -> Tensor:
        """[2, len(tokens)]: what a forward pass over these tokens would write."""
        found = [hash((self.model, tuple(tokens[: end + 1]))) for end in range(len(tokens))]
        return torch.tensor([found, [-one for one in found]])

    def compute(self, slot: int, tokens: Sequence[int], start: int = 0) -> None:
        """A pass over the tokens from `start` on."""
        self.content[:, slot, start : len(tokens)] = self.states(tokens)[:, start:]

    def read_slot(self, slot: int, start: int, stop: int) -> Tensor:
        self.reads += 1
        return self.content[:, slot, start:stop].clone()

    def write_slot(self, slot: int, start: int, block: Tensor) -> None:
        self.content[:, slot, start : start + block.shape[1]] = block

    def holds(self, slot: int, tokens: Sequence[int], count: int) -> bool:
        """Are the first `count` positions those of these tokens?"""
        return bool((self.content[:, slot, :count] == self.states(tokens)[:, :count]).all())

    def scramble(self, slot: int) -> None:
        """Another row was here."""
        self.content[:, slot] = 7


def serve(cache: PrefixCache, store: Store, slot: int, tokens: list[int]) -> int:
    """A request: restore, read the rest, keep everything. Answers how many tokens were restored."""
    store.scramble(slot)
    restored = cache.restore(store, slot, tokens, store.model)
    assert store.holds(slot, tokens, restored)
    store.compute(slot, tokens, restored)
    cache.keep(store, slot, tokens, store.model)
    return restored


def random_requests(seed: int, count: int) -> Iterator[list[int]]:
    """Prompts that begin like an earlier one more often than not; few distinct tokens."""
    chance, earlier = random.Random(seed), [[0]]
    for _ in range(count):
        old = chance.choice(earlier)
        start = old[: chance.randrange(len(old) + 1)]
        tokens = start + [chance.randrange(2) for _ in range(chance.randrange(1, 20))]
        tokens = tokens[:POSITIONS]
        earlier.append(tokens)
        yield tokens


def check_random(make: Make, seed: int, limit_blocks: int = 12) -> None:
    """Whatever comes: content is right, the limit holds, bytes are exact, every block can be found."""
    cache, stores = make(limit_blocks * SIZE), (Store("target"), Store("draft"))
    for step, tokens in enumerate(random_requests(seed, 150)):
        restored = serve(cache, stores[step % 2], step % SLOTS, tokens)
        assert restored % BLOCK == 0
        assert restored < len(tokens)
        check_books(cache, limit_blocks * SIZE)


def check_books(cache: PrefixCache, limit: int) -> None:
    found = [block for root in cache._roots.values() for block in below(root)]
    assert sorted(map(id, found)) == sorted(map(id, cache._order))
    assert cache.bytes == sum(block.data.nbytes for block in found) <= limit
    age = {block: index for index, block in enumerate(cache._order)}
    assert all(age[child] < age[block] for block in found for child in block.children.values())
    assert all(cache._roots.values()), "an empty root stays"


def below(children: dict[Tokens, _Block]) -> Iterator[_Block]:
    for block in children.values():
        yield block
        yield from below(block.children)


def make(limit: int) -> PrefixCache:
    return PrefixCache(limit, BLOCK)
