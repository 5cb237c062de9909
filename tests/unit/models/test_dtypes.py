"""Which dtype "auto" takes."""

from __future__ import annotations

import pytest
import torch
from redraft_models import dtypes
from redraft_models.dtypes import resolve_dtype, trained_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("float32", "bfloat16", "wanted"),
    [(2.0, 1.0, torch.bfloat16), (1.1, 1.0, torch.float32), (1.0, 3.0, torch.float32)],
)
def test_auto_takes_bfloat16_where_it_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, float32: float, bfloat16: float, wanted: torch.dtype
) -> None:
    seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
    monkeypatch.setattr(dtypes, "product_seconds", lambda dtype, _: seconds[dtype])
    assert resolve_dtype("auto", CPU) is wanted


def test_a_named_dtype_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "product_seconds", lambda *_: pytest.fail("measured"))
    assert resolve_dtype("bfloat16", CPU) is torch.bfloat16
    assert (trained_dtype("auto"), trained_dtype("bfloat16")) == (torch.float32, torch.bfloat16)


def test_products_are_really_timed() -> None:
    assert all(dtypes.product_seconds(dtype, CPU) > 0 for dtype in dtypes.CANDIDATES)


def test_bfloat16_is_timed_where_the_processor_packs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AVX-512 or the like packing raises: such machines have to start all the same."""
    pack = torch.ops.mkldnn._reorder_linear_weight

    def refuse(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
        if weight.dtype is torch.bfloat16:
            raise RuntimeError("bf16 path needs the cpu support avx512bw, avx512vl and avx512dq")
        packed: torch.Tensor = pack(weight, rows)
        return packed

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    assert dtypes.product_seconds(torch.bfloat16, CPU) > 0
    assert dtypes.can_pack(CPU, torch.float32)
    assert not dtypes.can_pack(CPU, torch.bfloat16)
