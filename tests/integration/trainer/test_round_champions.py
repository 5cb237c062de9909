"""Rounds over a champion that is not as expected, and over versions and rounds of other origin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from redraft_models.adapter import read_adapter, write_adapter
from redraft_models.loading import load_draft
from redraft_trainer.errors import RoundTimeout
from redraft_trainer.plan import load_plan
from redraft_trainer.rounds import run_round

from .conftest import DOMAIN, QUICK, Bench

pytestmark = pytest.mark.integration
SHORT = {"max_steps": 4, "eval_every": 4}


def register(bench: Bench, folder: Path, **tags: object) -> int:
    """A version by hand, as somebody may do who has an adapter of another origin."""
    registry = bench.context.registry
    run_id = registry.start_run(DOMAIN, "by hand", {})
    registry.log_artifacts(run_id, folder, "version")
    return registry.register(DOMAIN, run_id, tags)


def test_a_champion_whose_files_are_rotten_does_not_stop_the_rounds(bench: Bench, tmp_path: Path) -> None:
    """Serving can't use it, so the base draft is what the candidate has to beat."""
    bench.traffic(100, seed=0)
    (tmp_path / "x" / "adapter").mkdir(parents=True)
    (tmp_path / "x" / "adapter" / "adapter_model.safetensors").write_bytes(b"rotten")
    bench.context.registry.promote(DOMAIN, register(bench, tmp_path / "x", sha256="0" * 64))
    result = bench.run("r", **SHORT)
    assert result.version == 2
    tags = bench.context.registry.version(DOMAIN, 2).tags
    assert "sha256" in tags["champion_problem"]
    assert (tags["parent_version"], tags["started_from"]) == ("1", "base")
    assert result.champion_acceptance_rate == pytest.approx(0.207, abs=0.03)


def test_a_champion_on_other_layers_is_measured_but_not_trained_on(bench: Bench, tmp_path: Path) -> None:
    bench.traffic(100, seed=0)
    assert bench.run("first", **SHORT).version == 1
    registry, context = bench.context.registry, bench.context
    draft, *_ = load_draft(context.models, context.cache_dir)
    whole = read_adapter(registry.download(DOMAIN, 1, tmp_path), draft.module, draft.fingerprint)
    fewer = list(whole.target_modules[:-1])
    tensors = {name: one for name, one in whole.tensors.items() if name.rpartition(".lora_")[0] in fewer}
    write_adapter(
        tmp_path / "fewer",
        tensors,
        r=whole.r,
        lora_alpha=whole.lora_alpha,
        target_modules=fewer,
        provenance={"base_draft_fingerprint": draft.fingerprint},
    )
    registry.promote(DOMAIN, register(bench, tmp_path / "fewer"))
    bench.traffic(100, seed=1)
    assert bench.run("second", **SHORT).version == 3
    tags = registry.version(DOMAIN, 3).tags
    assert tags["started_from"] == "base"
    assert "champion_problem" not in tags


def test_a_version_without_a_range_does_not_send_the_cursor_back(bench: Bench, tmp_path: Path) -> None:
    bench.traffic(100, seed=0)
    assert bench.run("first", **SHORT).version == 1
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "provenance.json").write_text("{}")
    assert register(bench, tmp_path / "x") == 2
    result = bench.run("second", **SHORT)
    assert result.decision == "skipped"
    assert result.reason.startswith("0 new tokens")
    assert bench.context.registry.prune(DOMAIN, keep=0).versions == ()


def test_a_plan_from_before_another_round_is_made_anew(bench: Bench, tmp_path: Path) -> None:
    """A killed round comes back on its own host after a round on another one: the range is taken already."""

    def die(_: object) -> None:
        raise KeyboardInterrupt

    bench.traffic(100, seed=0)
    with pytest.raises(KeyboardInterrupt):
        run_round(bench.context, DOMAIN, "killed", progress=_once_planned(bench, die))
    bench.traffic(20, seed=1)
    elsewhere = replace(
        bench.context, data_dir=tmp_path / "elsewhere", trainer=QUICK.model_copy(update=SHORT)
    )
    assert run_round(elsewhere, DOMAIN, "other").version == 1
    again = bench.run("killed", **SHORT)
    assert again.decision == "skipped"
    assert len(bench.context.registry.versions(DOMAIN)) == 1


def _once_planned(bench: Bench, then):  # type: ignore[no-untyped-def]
    def progress(event: object) -> None:
        if load_plan(bench.context.work_dir("killed")) is not None:
            then(event)

    return progress


def test_the_time_limit_holds_before_the_training_too(bench: Bench) -> None:
    bench.traffic(100, seed=0)
    queue = bench.context.queue.model_copy(update={"round_time_limit_seconds": 0})
    with pytest.raises(RoundTimeout, match="more than 0 s"):
        run_round(replace(bench.context, queue=queue), DOMAIN, "late")
    assert bench.context.registry.versions(DOMAIN) == []
