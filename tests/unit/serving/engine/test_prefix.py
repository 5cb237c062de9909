"""The prefix cache: what is restored, kept, left out, forgotten and counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from redraft_serving.engine.prefix import PrefixCache
from torch import Tensor

from .prefix_store import BLOCK, POSITIONS, SIZE, Store, check_books, make, serve


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
