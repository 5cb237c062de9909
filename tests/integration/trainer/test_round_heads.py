"""Rounds whose draft gets a trimmed head: chosen from training samples alone, measured as it will serve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from redraft_models.adapter import Adapter, read_adapter
from redraft_models.loading import load_draft
from redraft_trainer.split import split

from .conftest import DOMAIN, ROWS, Bench, answers, runs

pytestmark = pytest.mark.integration
SIZE, MIDDLE = 32, 35
SHORT = {"max_steps": 4, "eval_every": 4}


def restricted(columns: slice) -> np.ndarray:
    """The learn pair's table with only some of its words."""
    rows = np.zeros_like(ROWS)
    rows[:, columns] = ROWS[:, columns]
    return rows / rows.sum(axis=1, keepdims=True)


def version(bench: Bench, number: int, folder: Path) -> Adapter:
    context = bench.context
    draft, *_ = load_draft(context.models, context.cache_dir)
    files = context.registry.download(DOMAIN, number, folder)
    return read_adapter(files, draft.module, draft.fingerprint, version=number)


def test_the_head_knows_nothing_of_held_out_answers(bench: Bench, tmp_path: Path) -> None:
    """Held-out prompts are answered with the upper words, all others with the lower ones: a head that had
    looked at both would cover some of either.
    """
    lower = answers(120, 0, bench.identity, restricted(slice(3, MIDDLE)))
    upper = answers(120, 0, bench.identity, restricted(slice(MIDDLE, 67)))
    assert [one.prompt_ids for one in lower] == [one.prompt_ids for one in upper]
    settings = bench.context.trainer
    parts = [split(one, settings.holdout_percent, settings.validation_percent) for one in lower]
    bench.stream.append(
        [high if part == "heldout" else low for low, high, part in zip(lower, upper, parts, strict=True)]
    )
    result = bench.run("r", head_size=SIZE, **SHORT)
    adapter = version(bench, 1, tmp_path)
    assert adapter.head_ids is not None
    assert len(adapter.head_ids) == SIZE
    assert int(adapter.head_ids[-1]) < MIDDLE
    assert 1 in adapter.head_ids.tolist(), "what ends an answer is always scored"
    tags = bench.context.registry.version(DOMAIN, 1).tags
    assert (tags["head_size"], float(tags["head_coverage"])) == (str(SIZE), 0.0)
    assert (result.decision, result.acceptance_rate) == ("rejected", 0.0)


def test_each_version_is_measured_under_its_own_head(bench: Bench, tmp_path: Path) -> None:
    bench.traffic(120, seed=0)
    first = bench.run("trimmed", head_size=SIZE)
    assert first.decision == "promoted"
    adapter = version(bench, 1, tmp_path)
    tags = bench.context.registry.version(DOMAIN, 1).tags
    assert tags["head_sha256"] == adapter.provenance["head_sha256"]
    assert tags["holdout_percent"] == "20"
    covered = float(tags["head_coverage"])
    assert first.acceptance_rate is not None
    assert first.acceptance_rate <= covered + 0.03 < 1.0, "no draft is accepted where it can't propose"
    (run,) = runs(bench)
    assert run.data.metrics["head_size"] == SIZE
    assert run.data.metrics["head_coverage"] == pytest.approx(covered)
    assert run.data.params["head_size"] == str(SIZE)

    bench.traffic(120, seed=1)
    second = bench.run("full", head_size=0)
    champion = second.champion_acceptance_rate
    assert champion == pytest.approx(first.acceptance_rate, abs=0.05), "under its own head, not a full one"
    assert second.acceptance_rate is not None
    assert champion is not None
    assert second.acceptance_rate > champion + 0.03
    full = version(bench, 2, tmp_path)
    assert full.head_ids is None
    assert "head_sha256" not in json.dumps(dict(full.provenance))
    tags = bench.context.registry.version(DOMAIN, 2).tags
    assert (tags["head_size"], float(tags["head_coverage"])) == ("67", 1.0)
    assert "head_sha256" not in tags
