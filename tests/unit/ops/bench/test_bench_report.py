"""What a bench leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.loading import ModelPair
from redraft_ops.bench import machine, profile
from redraft_ops.bench.answers import Answer, Ask, Block
from redraft_ops.bench.engine import EngineRunner
from redraft_ops.bench.figures import figures
from redraft_ops.bench.plan import Goal
from redraft_ops.bench.report import COLUMNS, TITLES, WIDE, narrow, write_report
from redraft_serving.engine.interface import EngineStatistics
from redraft_serving.settings import ServingSettings

MakeAsks = Callable[..., list[Ask]]


@pytest.fixture
def document() -> dict[str, Any]:
    block = Block((Answer(0, (1, 2), chunks=((0.1, 1), (0.2, 1)), seconds=0.2),), 0.2)
    row = {"clients": 1, "rate": None, "dtype": "float32", **figures([block], Goal())}
    runs = [
        {"name": "off", **row, "ratio_to_off": 1.0, "equal": True},
        {"name": "vllm", **row, "equal": None},
        {"name": "k3", **row, "tokens_per_second": None, "itl_ms_p99": None, "equal": False},
    ]
    return {
        "command": "redraft bench",
        "mode": "load",
        "machine": machine.machine(),
        "target": "t",
        "draft": "d",
        "seconds": 3.0,
        "notes": ["assisted: left out"],
        "memory_bandwidth_gb_per_second": 20.0,
        "runs": runs,
    }


def test_json_markdown_and_picture(document: dict[str, Any], tmp_path: Path) -> None:
    path = write_report(document, "load", document["runs"], tmp_path / "new")
    text = path.read_text()
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == document
    assert "| off | 1 | float32 | 10 |" in text
    assert "| NO |" in text
    assert "assisted: left out" in text
    assert "20.0 GB/s" in text
    assert (tmp_path / "new" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_number_that_is_none_is_refused(document: dict[str, Any], tmp_path: Path) -> None:
    document["runs"][0]["ratio_to_off"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        write_report(document, "load", document["runs"], tmp_path)


def test_titles_belong_to_columns() -> None:
    columns = {column for names in COLUMNS.values() for column in names}
    assert set(TITLES) <= columns
    assert columns >= WIDE
    heads, (row,) = narrow("check-equal", [{"name": "k3", "clients": 8, "equal": True}])
    assert (len(heads), row[0], row[-1]) == (len(row), "k3", "yes")


def test_bytes_of_a_step() -> None:
    """A table of rows is read in part, a head in full, and one that is both as a head."""

    class Model(torch.nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(100, 8)
            self.body = torch.nn.Linear(8, 8, bias=False)
            self.head = torch.nn.Linear(8, 100, bias=False)
            if tied:
                self.head.weight = self.table.weight

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.head

    assert machine.step_bytes(Model(tied=True)) == machine.step_bytes(Model(tied=False)) == 4 * (64 + 800)
    assert machine.step_bytes(Model(tied=False).bfloat16()) == 2 * (64 + 800)


def test_shares_of_a_round() -> None:
    def snapshot(rounds: int, proposed: int, emitted: int, **seconds: float) -> EngineStatistics:
        counts = (0, 0, rounds, proposed, 0, 0, {"plain": emitted}, (), (), 0, {}, {}, ())
        return EngineStatistics(*counts, seconds=seconds)

    before = snapshot(10, 0, 10, verify=1.0, draft=0.5, rest=0.1, prefill=2.0)
    after = snapshot(30, 60, 90, verify=2.0, draft=1.0, rest=0.6, prefill=2.5)
    found = profile.shares(before, after, counted=(20, 40))
    assert (found["round_ms"], found["verify_ms"], found["tokens_per_round"]) == (100.0, 50.0, 4.0)
    assert [found[f"{phase}_share"] for phase in ("verify", "draft", "rest")] == [0.5, 0.25, 0.25]
    assert found["rows_per_round"] == 2.0
    assert found["positions"] == 5.0, "two rows a round, and three drafted tokens"
    assert found["prefill_seconds"] == 0.5
    unknown = profile.shares(snapshot(0, 0, 0), snapshot(5, 0, 5), counted=(5, 5))
    assert unknown["round_ms"] is unknown["verify_share"] is None


def test_rounds_and_rows_are_counted(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks) -> None:
    """Plain decoding gives a token per row and round, and none of it is in the engine's own counts."""
    runner = EngineRunner(load_toy("random"), ServingSettings(max_num_seqs=3))
    count = profile.RoundCount(runner.engine)
    with runner:
        runner.run(make_asks(6, 10), 1, 0)
        assert count.snapshot() == (60, 60)
        begun = count.snapshot()
        runner.run(make_asks(6, 10), 3, 0)
        rounds, rows = count.since(begun)
    assert rows == 60
    assert 20 <= rounds < 60
