"""`redraft bench --during-training` on a toy pair: a real worker and a real training, in turn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_ops.demo.prompts import word_prompts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
Redraft = Callable[..., subprocess.CompletedProcess[str]]


def test_time_per_token_with_and_without_a_training(
    redraft: Redraft, toy_pair: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """The same prompts in both, tokens from both, and a training that really made steps meanwhile."""
    target, draft = toy_pair("learn")
    words = [f"{'abcdefgh'[i % 8]}{i // 8}" for i in range(64)]
    texts = word_prompts(1, words, 6, 30)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    given = ("--prompts", str(prompts), "--requests", "24", "--max-tokens", "24", "--ignore-eos")
    answer = redraft(
        "bench", "--during-training", "--json", "--compare", "auto", "--block", "8", *given,
        "--target", str(target), "--draft", str(draft), "--out", str(tmp_path / "out"),
        timeout=380, REDRAFT_TRAINER__PRIORITY="low", REDRAFT_TRAINER__NUM_THREADS="1",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    alone, beside = document["runs"]
    assert (alone["training"], beside["training"]) == ("alone", "during training")
    assert alone["tokens"] == beside["tokens"] > 0
    assert alone["failed"] == beside["failed"] == 0
    assert beside["time_ratio"] > 0
    assert beside["training_pace"] > 0
    assert "training's pace" in (tmp_path / "out" / "bench.md").read_text()
    refused = redraft("bench", "--during-training", "--compare", "generate", "--prompts", str(prompts))
    assert refused.returncode == 2
