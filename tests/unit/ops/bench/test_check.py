"""Equal text is found equal, and a variant that says something else is found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from redraft_models.loading import ModelPair
from redraft_models.quiet import quiet_transformers
from redraft_ops import cli
from redraft_ops.bench import check
from redraft_ops.bench.answers import Ask, Block
from redraft_ops.bench.engine import EngineRunner
from redraft_ops.bench.plan import BenchPlan
from redraft_serving.policy.types import Setting
from redraft_serving.settings import ServingSettings
from typer.testing import CliRunner

MakeAsks = Callable[..., list[Ask]]


class Wrong(EngineRunner):
    """Gives another last token where three are proposed."""

    def run(self, asks: Sequence[Ask], clients: int, setting: Setting, domain: str | None = None) -> Block:
        block = super().run(asks, clients, setting, domain)
        if setting != 3:
            return block
        last = [replace(a, ids=(*a.ids[:-1], (a.ids[-1] + 1) % 60)) for a in block.answers]
        return replace(block, answers=tuple(last))


def checked(pair: ModelPair, asks: list[Ask]) -> dict[tuple[str, int], bool]:
    told: list[None] = []
    plan = BenchPlan(len(asks), clients=(1, 3))
    serving = ServingSettings(max_speculative_tokens=5)
    with quiet_transformers():
        by_clients = {1: asks, 3: asks}
        found = check.check_equal(pair, serving, by_clients, plan, "float32", 1e12, lambda: told.append(None))
    assert len(found) == check.amount(plan, serving.max_speculative_tokens) == len(told) - 2
    return {(one.name, one.clients): one.result.equal for one in found}


@pytest.mark.parametrize("kind", ["random", "chain"])
def test_speculation_does_not_show(
    load_toy: Callable[[str], ModelPair], make_asks: MakeAsks, kind: str
) -> None:
    asks = make_asks(4, 12) if kind == "random" else [Ask(n, (3 + n,), 9) for n in range(3)]
    found = checked(load_toy(kind), asks)
    assert {name for name, _ in found} == {"off", "k1", "k2", "k3", "k5", "auto", "draft", "ngram"}
    assert all(found.values())


def test_a_wrong_variant_goes_red(
    load_toy: Callable[[str], ModelPair], make_asks: MakeAsks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "EngineRunner", Wrong)
    found = checked(load_toy("random"), make_asks(3, 12))
    assert {name for (name, _), equal in found.items() if not equal} == {"k3", "draft", "ngram"}


def test_time_that_is_up_ends_it(load_toy: Callable[[str], ModelPair], make_asks: MakeAsks) -> None:
    plan = BenchPlan(2)
    found = check.check_equal(
        load_toy("random"), ServingSettings(), {1: make_asks(2, 4)}, plan, "float32", 0.0
    )
    assert [one.name for one in found] == ["off"]


def test_a_difference_is_exit_1(
    toy_pair: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = toy_pair("learn")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = ["bench", "--check-equal", "--target", str(target), "--draft", str(draft), "--requests", "2"]
    command += ["--max-tokens", "6", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    monkeypatch.setattr(check, "EngineRunner", Wrong)
    found = CliRunner().invoke(cli.app, command)
    assert found.exit_code == 1, found.output
    assert "forks at token 5" in (tmp_path / "out" / "bench.md").read_text()
