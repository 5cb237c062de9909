"""Rounds over a stream that was trimmed unseen, and from folders that are gone when their version serves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from redraft_models.loading import load_pair
from redraft_queue.keys import samples
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings
from redraft_serving.swap import SwapWatcher
from redraft_trainer.rounds import run_round

from .conftest import DOMAIN, Bench, runs

pytestmark = pytest.mark.integration
SHORT = {"max_steps": 4, "eval_every": 4}


def test_a_round_after_samples_were_trimmed_unseen_succeeds_and_counts_them(bench: Bench) -> None:
    """A version that saw 10 of 100; of the 90 others, 3 are trimmed before the round: 87 are new to it."""
    registry = bench.context.registry
    bench.traffic(10, seed=0)
    seen = bench.stream.position(DOMAIN)
    cursor = {
        "stream_last_id": seen.last_id,
        "stream_last_ordinal": seen.entries_added,
        "stream_last_tokens": seen.tokens_added,
    }
    registry.register(DOMAIN, registry.start_run(DOMAIN, "by hand", {}), cursor)
    ids = bench.traffic(90, seed=1)
    bench.context.client.xtrim(samples(DOMAIN), maxlen=87, approximate=False)
    result = bench.run("r", **SHORT)
    assert (result.decision, result.version) == ("promoted", 2)
    tags = registry.version(DOMAIN, 2).tags
    assert (tags["stream_lost"], tags["stream_first_id"], tags["stream_last_id"]) == ("3", ids[3], ids[-1])
    assert runs(bench)[0].data.params["lost_entries"] == "3"
    assert bench.stream.dead_length(DOMAIN) == 0


def test_a_version_is_served_where_the_folders_it_was_trained_from_are_gone(
    bench: Bench, tmp_path: Path
) -> None:
    """Its base is known by its weights: the same files under another path are the same base."""
    trained, served = tmp_path / "trained", tmp_path / "served"
    for name in ("target", "draft"):
        shutil.copytree(getattr(bench.context.models, name), trained / name)
    models = bench.context.models.model_copy(update={n: str(trained / n) for n in ("target", "draft")})
    bench.traffic(80, seed=0)
    settings = bench.context.trainer.model_copy(update=SHORT)
    context = replace(bench.context, models=models, trainer=settings, data_dir=trained / "data")
    assert run_round(context, DOMAIN, "r").decision == "promoted"
    shutil.move(trained, served)
    shutil.rmtree(served / "data")

    moved = models.model_copy(update={name: str(served / name) for name in ("target", "draft")})
    pair = load_pair(moved, tmp_path / "another-cache")
    assert pair.draft is not None
    engine = LocalEngine(pair, ServingSettings(num_speculative_tokens=3))
    engine.start()
    watcher = SwapWatcher(
        bench.context.registry,
        engine,
        pair.draft.module,
        pair.draft.fingerprint,
        lambda: [DOMAIN],
        1.0,
        tmp_path / "adapters",
    )
    try:
        watcher.look()
        (draft,) = engine.statistics().drafts
    finally:
        engine.stop()
    assert (watcher.serving, draft.version) == ({DOMAIN: 1}, 1)
