"""Places of a pool: used again, and apart from each other."""

from __future__ import annotations

import torch
from redraft_serving.engine.pool import SLAB_BYTES, TensorPool


def test_copies_stand_apart_and_places_are_used_again() -> None:
    pool = TensorPool()
    first, second = (torch.full((2, 3), float(n)) for n in (1, 2))
    held = [pool.hold(first), pool.hold(second)]
    first.zero_()
    assert [one.unique().tolist() for one in held] == [[1.0], [2.0]]
    pool.free(held[0])
    third = pool.hold(torch.full((2, 3), 3.0))
    assert third.data_ptr() == held[0].data_ptr()
    assert held[1].unique().tolist() == [2.0]
    assert pool.hold(torch.ones(2, 3, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_memory_grows_by_pieces_alone() -> None:
    pool = TensorPool()
    size = SLAB_BYTES // 8 // 4
    held = [pool.hold(torch.zeros(size)) for _ in range(24)]
    assert len({one.untyped_storage().data_ptr() for one in held}) == 3
