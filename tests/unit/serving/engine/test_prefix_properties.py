"""What a prefix cache must hold whatever is asked of it, and wrong variants that break it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import pytest
from redraft_serving.engine.prefix import PrefixCache, Tokens, _Block

from .prefix_store import BLOCK, SIZE, Make, Store, check_random, make, random_requests, serve


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
