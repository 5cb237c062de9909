"""Beginnings of token sequences whose keys and values are known: system prompts, earlier turns, repeats.

Copies of whole blocks of a slot's keys and values, in a tree: a block is found under the one before it, by
its own tokens. So a block stands for exactly one beginning, and equal hashes of different tokens mean
nothing. All blocks are kept that fit; those not used for the longest time go first, leaves before what they
continue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from torch import Tensor

from redraft_serving.engine.pool import TensorPool

Tokens = tuple[int, ...]


class SlotStore(Protocol):
    """The keys and values of one model, by slot and position."""

    def read_slot(self, slot: int, start: int, stop: int) -> Tensor:
        """A copy of what the positions start..stop-1 hold, all layers together, in a storage of its own.

        Its layout is the store's business: [layers, 2, heads, stop - start, head size] where all layers are
        alike.
        """

    def write_slot(self, slot: int, start: int, block: Tensor) -> None:
        """Put such a copy into the positions from `start` on."""


@dataclass(slots=True, eq=False)
class _Block:
    key: Hashable
    siblings: dict[Tokens, _Block]
    """Where it is found: blocks that continue the same beginning, itself among them."""
    tokens: Tokens
    data: Tensor
    children: dict[Tokens, _Block] = field(default_factory=dict)


class PrefixCache:
    """Blocks of `block` tokens, together at most `limit_bytes`; 0 keeps nothing.

    `key` tells apart what equal tokens don't: the model, for a draft the checksum of its weights, and the
    domain, since what is found shows. One cache may serve several stores under different keys: they share the
    limit. For the inference thread alone.

    What is kept is given to others, so keep only what is whole: never a row whose logits were not finite (a
    NaN would reach every request with that beginning), and no draft's row that has lived through a swap.
    """

    def __init__(self, limit_bytes: int, block: int = 32) -> None:
        self.limit_bytes, self.block = limit_bytes, block
        self.bytes = 0
        """Of the tensors held; never above the limit."""
        self.hits, self.misses, self.tokens, self.evictions = 0, 0, 0, 0
        """Restores that found something, that found nothing; tokens restored; blocks given up for others."""
        self._pool = TensorPool()
        self._roots: dict[Hashable, dict[Tokens, _Block]] = {}
        self._order: OrderedDict[_Block, None] = OrderedDict()
        """Least recently used first. A block is always older than the one that it continues: see `_touch`."""

    @property
    def blocks(self) -> int:
        """How many are held. (No `__len__`: an empty cache is not a missing one.)"""
        return len(self._order)

    def restore(self, store: SlotStore, slot: int, tokens: Sequence[int], key: Hashable = None) -> int:
        """Copy the longest known beginning of `tokens` into a slot, from position 0 on.

        Answers how many positions that are: a multiple of the block, less than all tokens (the last one has
        to be read anew, for its logits).
        """
        path = self._known(tokens[:-1], key)
        for index, block in enumerate(path):
            store.write_slot(slot, index * self.block, block.data)
        self._touch(path)
        self.hits, self.misses = self.hits + bool(path), self.misses + (not path)
        restored = len(path) * self.block
        self.tokens += restored
        return restored

    def keep(self, store: SlotStore, slot: int, tokens: Sequence[int], key: Hashable = None) -> None:
        """Remember the whole blocks of `tokens`, whose keys and values the slot holds from position 0 on.

        Only blocks not known yet are copied; what doesn't fit beside the blocks before it is left out.
        """
        path = self._known(tokens, key)
        self._touch(path)
        try:
            for part in islice(self._parts(tokens), len(path), None):
                start = len(path) * self.block
                data = store.read_slot(slot, start, start + self.block)
                if not self._make_room(data.nbytes, path):
                    break
                siblings = path[-1].children if path else self._roots.setdefault(key, {})
                path.append(self._add(_Block(key, siblings, part, self._pool.hold(data))))
        finally:
            self._touch(path)

    def forget(self, key: Hashable) -> None:
        """Drop everything under a key, or under tuples that begin with it: a draft that serves no more."""
        for block in [block for block in self._order if _under(block.key, key)]:
            self._drop(block)

    def _parts(self, tokens: Sequence[int]) -> Iterator[Tokens]:
        whole = len(tokens) - len(tokens) % self.block
        return (tuple(tokens[at : at + self.block]) for at in range(0, whole, self.block))

    def _known(self, tokens: Sequence[int], key: Hashable) -> list[_Block]:
        """The longest path of blocks that these tokens begin with."""
        path: list[_Block] = []
        children = self._roots.get(key, {})
        for part in self._parts(tokens):
            block = children.get(part)
            if block is None:
                break
            path.append(block)
            children = block.children
        return path

    def _touch(self, path: Sequence[_Block]) -> None:
        """Mark as used, the end of the path first: then the oldest block of all has no children."""
        for block in reversed(path):
            self._order.move_to_end(block)

    def _make_room(self, size: int, path: Sequence[_Block]) -> bool:
        """Give up the oldest blocks until `size` more bytes fit; False where they can't without the path."""
        if size > self.limit_bytes:
            return False
        while self.bytes + size > self.limit_bytes:
            oldest = next(iter(self._order))
            if oldest in path:
                return False
            self._drop(oldest)
            self.evictions += 1
        return True

    def _add(self, block: _Block) -> _Block:
        block.siblings[block.tokens] = block
        self._order[block] = None
        self.bytes += block.data.nbytes
        return block

    def _drop(self, block: _Block) -> None:
        del self._order[block], block.siblings[block.tokens]
        self.bytes -= block.data.nbytes
        self._pool.free(block.data)
        if not self._roots.get(block.key, True):
            del self._roots[block.key]


def _under(key: Hashable, start: Hashable) -> bool:
    if isinstance(key, tuple) and isinstance(start, tuple):
        return key[: len(start)] == start
    return key == start
