"""Drafts cut from a toy target: healed with a head of the answers' ids, or given one later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redraft_models.draft_folder import write_draft_folder
from redraft_models.loading import ModelPair, load_pair
from redraft_models.settings import ModelSettings
from redraft_models.toy import write_toy_pair
from redraft_ops.errors import UsageError
from redraft_ops.healing.heal import heal_cut
from redraft_ops.healing.kept import write_samples
from redraft_ops.healing.trim import halves, mean_law, trim
from redraft_queue.records import Sample, ids_to_bytes
from redraft_trainer.settings import TrainerSettings

USED = range(20, 40)
"""The only words of the answers."""
SETTINGS = TrainerSettings(max_steps=2, rank=2, lora_alpha=4, head_size=24, validation_percent=30)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_pair(tmp_path_factory.mktemp("random"), "random")[0]


@pytest.fixture(scope="module")
def pair(target: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    settings = ModelSettings(target=str(target), draft="none", device="cpu")
    return load_pair(settings, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def answers(pair: ModelPair) -> list[Sample]:
    """Forty answers of six tokens, with a law that is even over all words of the answers."""
    generator = np.random.default_rng(0)
    logprobs = np.full((6, len(USED)), -np.log(len(USED)), dtype="<f2")
    return [
        Sample(
            request_id=f"a{i}",
            domain="healing",
            created_ms=0,
            target_fingerprint=pair.target.fingerprint,
            tokenizer_fingerprint=pair.tokenizer_fingerprint,
            prompt_ids=(3, 4, 5 + i),
            output_ids=tuple(int(word) for word in generator.choice(USED, size=6)),
            topk_ids=ids_to_bytes(list(USED) * 6),
            topk_logprobs=logprobs.tobytes(),
            tail_mass=np.zeros(6, "<f2").tobytes(),
            top_k_logged=len(USED),
        )
        for i in range(40)
    ]


def load_draft(folder: Path, target: Path, cache: Path) -> Any:
    return load_pair(ModelSettings(target=str(target), draft=str(folder), device="cpu"), cache).draft


def test_a_healed_draft_scores_what_its_answers_use(
    pair: ModelPair, target: Path, answers: list[Sample], tmp_path: Path
) -> None:
    healed = heal_cut(pair, [0], answers, SETTINGS, tmp_path / "draft", {"seed": 0}, lambda _: None)
    draft = load_draft(tmp_path / "draft", target, tmp_path)
    assert draft.head_ids.tolist() == [0, 1, 2, 3, *USED], "<eos> is 1, then the lowest fill up"
    assert (healed.head_size, healed.head_coverage) == (24, 1.0)
    assert draft.fingerprint == healed.recipe.base_draft_fingerprint
    provenance = json.loads((tmp_path / "draft" / "provenance.json").read_text())
    assert provenance["head"]["ids"] == 24


def test_a_size_of_zero_keeps_the_full_head(
    pair: ModelPair, target: Path, answers: list[Sample], tmp_path: Path
) -> None:
    full = SETTINGS.model_copy(update={"head_size": 0})
    healed = heal_cut(pair, [0], answers, full, tmp_path / "draft", {}, lambda _: None)
    assert load_draft(tmp_path / "draft", target, tmp_path).head_ids is None
    assert (healed.head_size, healed.recipe.head_sha256) == (64, None)
    assert not (tmp_path / "draft" / "head.safetensors").exists()


def test_the_mean_law_is_that_of_every_position(pair: ModelPair, answers: list[Sample]) -> None:
    law = mean_law(pair, answers[:2], lambda: None)
    rows = []
    with torch.no_grad():
        for one in answers[:2]:
            logits = pair.target.module(torch.tensor([one.prompt_ids + one.output_ids])).logits[0]
            rows.append(torch.softmax(logits.double(), -1))
    assert torch.allclose(law, torch.cat(rows).mean(0), atol=1e-6)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-5)


def test_both_kinds_of_answers_are_in_both_parts() -> None:
    """Greedy and sampled answers alternate: every fourth sample would be of one kind."""
    seen, unseen = halves(list(range(16)))  # type: ignore[arg-type]
    assert unseen == [6, 7, 14, 15]
    assert sorted(seen + unseen) == list(range(16))


def test_a_draft_is_trimmed_and_stays_the_same_draft(
    pair: ModelPair,
    target: Path,
    answers: list[Sample],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRAFT_MODELS__TARGET", str(target))
    monkeypatch.setenv("REDRAFT_CACHE_DIR", str(tmp_path / "cache"))
    write_draft_folder(
        tmp_path / "draft",
        target="toy",
        target_fingerprint=pair.target.fingerprint,
        tokenizer_fingerprint=pair.tokenizer_fingerprint,
        layers=[0],
    )
    write_samples(tmp_path / "kept", answers)
    before = load_draft(tmp_path / "draft", target, tmp_path)
    trim(tmp_path / "draft", size=16, samples=tmp_path / "kept")
    after = load_draft(tmp_path / "draft", target, tmp_path)
    assert (before.head_ids, len(after.head_ids)) == (None, 16)
    assert after.fingerprint == before.fingerprint
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "draft" / "provenance.json").read_text())["head"]
    assert (told["ids"], told["conversations"], told["measured_on_tokens"]) == (16, 30, 60)
    assert 0.0 <= told["coverage"] < 1.0
    with pytest.raises(UsageError, match="choose a smaller one"):
        trim(tmp_path / "draft", size=60, samples=tmp_path / "kept")
