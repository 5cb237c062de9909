"""The prefix cache over a store whose content tells which beginning it was computed from.

Each property is a function that takes the class, so that a wrong variant can be shown to break it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise

import pytest
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


@pytest.mark.parametrize("seed", range(8))
def test_random_traffic(seed: int) -> None:
    check_random(make, seed)


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_without_pressure_restores_all_that_was_seen(seed: int) -> None:
    """With room for all, exactly the blocks that an earlier request of the same model began with."""
    cache, store, seen = make(1 << 20), Store(), set[Tokens]()
    for tokens in random_requests(seed, 80):
        known = 0
        while known + BLOCK < len(tokens) and tuple(tokens[: known + BLOCK]) in seen:
            known += BLOCK
        assert serve(cache, store, 0, tokens) == known
        seen |= {tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)}
    assert cache.evictions == 0


def check_other_keys(make: Make) -> None:
    cache, one, other = make(1 << 20), Store("version 1"), Store("version 2")
    tokens = list(range(20))
    assert serve(cache, one, 0, tokens) == 0
    assert serve(cache, other, 1, tokens) == 0
    assert serve(cache, one, 2, tokens) == serve(cache, other, 2, tokens) == 16


def check_leaves_first(make: Make) -> None:
    """Room for five: three blocks of one beginning, two of another; the sixth costs the oldest end."""
    cache, store = make(5 * SIZE), Store()
    long, short, new = list(range(12)), [50] * 8, [60] * 4
    for tokens in (long, short, new):
        serve(cache, store, 0, tokens)
    assert cache.evictions == 1
    assert [len(cache._known(tokens, store.model)) for tokens in (long, short, new)] == [2, 2, 1]


def check_use_counts(make: Make) -> None:
    """A beginning that is restored again and again outlives newer ones that nobody asked for twice."""
    cache, store = make(4 * SIZE), Store()
    system = [1] * 8
    serve(cache, store, 0, system)
    for number in range(2, 30):
        serve(cache, store, 0, [number] * 8)
        assert serve(cache, store, 0, [*system, number]) == 8


def check_same_hash(make: Make) -> None:
    """-1 and -2 have the same hash, and so have tuples of them: they are not the same tokens."""
    ours, theirs = [-1] * 8, [-2] * 8
    assert hash(tuple(ours)) == hash(tuple(theirs))
    cache, store = make(1 << 20), Store()
    serve(cache, store, 0, ours)
    assert cache.restore(store, 1, [*theirs, 5], store.model) == 0


def check_place(make: Make) -> None:
    """The same block behind another beginning is another block."""
    cache, store = make(1 << 20), Store()
    serve(cache, store, 0, [1] * 4 + [9] * 4 + [2])
    assert serve(cache, store, 0, [9] * 4 + [1] * 4 + [2]) == 0
    assert serve(cache, store, 0, [3] * 4 + [9] * 4 + [2]) == 0


CHECKS = [check_other_keys, check_leaves_first, check_use_counts, check_same_hash, check_place]


@pytest.mark.parametrize("check", CHECKS)
def test_properties(check: Callable[[Make], None]) -> None:
    check(make)


class IgnoresKeys(PrefixCache):
    """Answers with what another version computed."""

    def _known(self, tokens: Sequence[int], key: Hashable) -> list[_Block]:
        return super()._known(tokens, next(iter(self._roots), key))


class RootFirst(PrefixCache):
    """Marks a path from its beginning: the beginning is given up before what continues it."""

    def _touch(self, path: Sequence[_Block]) -> None:
        super()._touch(list(reversed(path)))


class NeverTouches(PrefixCache):
    """First in, first out."""

    def _touch(self, path: Sequence[_Block]) -> None:
        return


class ByHash(PrefixCache):
    """Takes a hash for the tokens."""

    def _parts(self, tokens: Sequence[int]) -> Iterator[Tokens]:
        return ((hash(part),) for part in super()._parts(tokens))


class ByPlace(PrefixCache):
    """Looks at the block alone, not at what comes before it."""

    def _known(self, tokens: Sequence[int], key: Hashable) -> list[_Block]:
        every = {block.tokens: block for block in self._order}
        found = [every.get(part) for part in self._parts(tokens)]
        return [block for block in found if block is not None]


class NoLimit(PrefixCache):
    """Grows."""

    def _make_room(self, size: int, path: Sequence[_Block]) -> bool:
        return True


class Shifted(PrefixCache):
    """Puts each block one position off."""

    def restore(self, store: Store, slot: int, tokens: Sequence[int], key: Hashable = None) -> int:  # type: ignore[override]
        restored = super().restore(store, slot, tokens, key)
        store.content[:, slot] = store.content[:, slot].roll(1, dims=-1)
        return restored


@pytest.mark.parametrize(
    ("variant", "check"),
    [
        (IgnoresKeys, check_other_keys),
        (RootFirst, check_leaves_first),
        (NeverTouches, check_use_counts),
        (ByHash, check_same_hash),
        (ByPlace, check_place),
    ],
)
def test_wrong_variants_go_red(variant: type[PrefixCache], check: Callable[[Make], None]) -> None:
    with pytest.raises(AssertionError):
        check(lambda limit: variant(limit, BLOCK))


@pytest.mark.parametrize("variant", [RootFirst, NoLimit, Shifted, ByPlace])
def test_random_traffic_sees_wrong_variants(variant: type[PrefixCache]) -> None:
    with pytest.raises(AssertionError):
        check_random(lambda limit: variant(limit, BLOCK), seed=0)


def test_a_row_is_never_restored_whole() -> None:
    """The last token is read anew: its logits are wanted."""
    cache, store = make(1 << 20), Store()
    tokens = list(range(3 * BLOCK))
    serve(cache, store, 0, tokens)
    assert cache.restore(store, 1, tokens, store.model) == 2 * BLOCK
    assert cache.restore(store, 1, [*tokens, 99], store.model) == 3 * BLOCK
    assert cache.restore(store, 1, [], store.model) == cache.restore(store, 1, [0], store.model) == 0


def test_known_blocks_are_not_copied_again() -> None:
    """A prompt that is read in chunks may be kept after each of them."""
    cache, store = make(1 << 20), Store()
    tokens = list(range(18))
    store.compute(0, tokens)
    for done in (3, 5, 11, 18, 18):
        cache.keep(store, 0, tokens[:done], store.model)
    assert (store.reads, cache.blocks, cache.bytes) == (4, 4, 4 * SIZE)


def test_an_empty_cache_is_not_a_missing_one() -> None:
    """`cache or another` takes the cache."""
    assert PrefixCache(0)


def test_counters() -> None:
    cache, store = make(2 * SIZE), Store()
    serve(cache, store, 0, [1] * 9)
    serve(cache, store, 0, [1] * 9)
    serve(cache, store, 0, [2] * 9)
    assert (cache.hits, cache.misses, cache.tokens, cache.evictions) == (1, 2, 8, 2)


@pytest.mark.parametrize(("limit", "kept"), [(0, 0), (SIZE - 1, 0), (SIZE, 1), (3 * SIZE + 1, 3)])
def test_what_does_not_fit_is_left_out_from_the_end(limit: int, kept: int) -> None:
    """Also where a row alone is larger than the cache: its beginning is kept, not its end."""
    cache, store = make(limit), Store()
    tokens = list(range(POSITIONS))
    serve(cache, store, 0, tokens)
    assert cache.blocks == kept
    assert serve(cache, store, 0, tokens) == kept * BLOCK
    check_books(cache, limit)


def test_a_forgotten_key_is_gone_and_the_others_stay() -> None:
    cache, old, new = make(1 << 20), Store("version 1"), Store("version 2")
    tokens = list(range(20))
    serve(cache, old, 0, tokens)
    serve(cache, new, 0, tokens)
    cache.forget("version 1")
    cache.forget("never known")
    assert cache.bytes == 5 * SIZE
    check_books(cache, 1 << 20)
    assert serve(cache, old, 0, tokens) == 0
    assert serve(cache, new, 0, tokens) == 16


def test_a_draft_that_serves_no_more_is_forgotten_in_all_domains() -> None:
    cache = make(1 << 20)
    keys = [
        ("draft", "old", "law"),
        ("draft", "old", "medicine"),
        ("draft", "older", "law"),
        ("target", "law"),
    ]
    stores = [Store(key) for key in keys]
    for store in stores:
        serve(cache, store, 0, list(range(20)))
    cache.forget(("draft", "old"))
    assert cache.bytes == 2 * 5 * SIZE
    check_books(cache, 1 << 20)
    assert [serve(cache, store, 0, list(range(20))) for store in stores] == [0, 0, 16, 16]


def test_a_store_that_fails_half_way_leaves_the_books_right() -> None:
    cache, store = make(3 * SIZE), Store()
    tokens = list(range(12))
    store.compute(0, tokens)
    read, calls = store.read_slot, []

    def failing(slot: int, start: int, stop: int) -> Tensor:
        calls.append(start)
        if len(calls) == 3:
            raise MemoryError
        return read(slot, start, stop)

    store.read_slot = failing  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        cache.keep(store, 0, tokens, store.model)
    check_books(cache, 3 * SIZE)
    assert cache.restore(store, 1, tokens, store.model) == 8


def test_what_was_kept_is_a_copy() -> None:
    """The slot's next row changes nothing of it."""
    cache, store = make(1 << 20), Store()
    tokens = list(range(9))
    serve(cache, store, 0, tokens)
    store.scramble(0)
    assert cache.restore(store, 0, tokens, store.model) == 8
    assert store.holds(0, tokens, 8)


def test_order_of_age_is_the_order_of_use() -> None:
    cache, store = make(1 << 20), Store()
    first, second = [1] * 5, [2] * 5
    for tokens in (first, second, first):
        serve(cache, store, 0, tokens)
    (older, newer) = pairwise(cache._order).__next__()
    assert (older.tokens, newer.tokens) == ((2,) * 4, (1,) * 4)
