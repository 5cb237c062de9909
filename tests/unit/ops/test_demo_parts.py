"""Small decisions of the demo: when streams start, which greedy texts count, whose folder is emptied."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from redraft_ops.commands.demo import mlflow_command
from redraft_ops.demo.oracle import GreedyText, all_equal
from redraft_ops.demo.plan import DemoPlan
from redraft_ops.demo.setup import choose_prompts, prepare
from redraft_ops.demo.swap import _Training
from redraft_ops.errors import UsageError


def test_streams_start_once_when_the_training_is_nearly_over() -> None:
    training = _Training(0.9)
    events = [
        {},
        {"stage": "collect"},
        *({"stage": "train", "step": n, "total": 10} for n in range(11)),
        {"stage": "x"},
    ]
    told = [index for index, event in enumerate(events) if training.nearly_over(event)]
    assert told == [2 + 9]


def test_an_early_stop_starts_them_too() -> None:
    training = _Training(0.9)
    events = [
        {"stage": "collect"},
        {"stage": "train", "step": 2, "total": 10},
        {"stage": "measure"},
        {"stage": "register"},
    ]
    assert [training.nearly_over(event) for event in events] == [False, False, True, False]


def test_greedy_texts_are_compared_except_near_ties() -> None:
    references = [GreedyText("a", False), GreedyText("b", True)]
    assert all_equal(["a", "other"], references)
    assert not all_equal(["x", "b"], references)
    assert not all_equal(["b"], [GreedyText("b", True)]), "nothing is left to compare"


def test_prompt_sets_do_not_overlap() -> None:
    sets = choose_prompts(DemoPlan(pair="learn", prompts=50, fresh_prompts=20, probes=5))
    spare = sets.spare.take(100)
    together = [*sets.probes, *sets.traffic, *sets.fresh, *spare]
    assert (len(sets.probes), len(sets.traffic), len(sets.fresh), len(spare)) == (5, 50, 20, 100)
    assert len(set(together)) == len(together)


def test_only_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    prepare(folder)
    (folder / "old").touch()
    prepare(folder)
    assert not (folder / "old").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    with pytest.raises(UsageError):
        prepare(other)


def test_the_command_for_mlflow_can_be_typed_without_an_environment(tmp_path: Path) -> None:
    words = shlex.split(mlflow_command(tmp_path / "two words"))
    assert Path(words[0]).is_file()
    assert f"sqlite:///{tmp_path}/two words/data/mlflow/mlflow.db" in words
