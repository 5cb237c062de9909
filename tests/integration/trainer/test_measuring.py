"""`redraft measure` behind its command: what is held in memory, and how far a draft is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from redraft_ops.measuring import measure_versions
from redraft_ops.settings import Settings
from redraft_ops.stack import Stack
from redraft_queue.records import Sample
from redraft_queue.stream import SampleStream
from redraft_trainer import measure

from .conftest import DOMAIN, Bench

pytestmark = pytest.mark.integration
WINDOW, MOST = 16, 200


def test_few_samples_are_kept_and_none_is_measured_past_the_drafts_window(
    bench: Bench, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.traffic(400, seed=0)
    draft = Path(shutil.copytree(bench.context.models.draft, tmp_path / "draft"))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "max_position_embeddings": WINDOW}))
    models = bench.context.models.model_copy(update={"draft": str(draft)})
    settings = Settings.model_validate(
        {
            "models": models.model_dump(),
            "trainer": {"max_heldout_tokens": MOST},
            "cache_dir": bench.context.cache_dir,
        }
    )
    stack = Stack(redis_url, bench.context.registry.tracking_uri, None, settings)
    longest: list[int] = []
    kept: list[object] = []
    score, read = measure.score, SampleStream.read

    def watched(module: Any, examples: Any, vocab_size: int, **options: Any) -> Any:
        longest.append(max(len(one.input_ids) for one in examples))
        return score(module, examples, vocab_size, **options)

    def reading(*arguments: Any, **options: Any) -> Any:
        for entry_id, sample in read(*arguments, **options):
            kept.append(sample.request_id)
            yield entry_id, _Counted(sample)

    monkeypatch.setattr(measure, "score", watched)
    monkeypatch.setattr(SampleStream, "read", reading)
    base, again = measure_versions(stack, DOMAIN, [None, None])
    assert base.report == again.report
    assert MOST <= base.report.tokens < MOST + 3 * 20
    assert longest == [WINDOW, WINDOW]
    assert len(kept) == 400
    assert _Counted.most < 10


class _Counted:
    """A sample that tells how many of its kind were alive at once."""

    alive = most = 0

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        _Counted.alive += 1
        _Counted.most = max(_Counted.most, _Counted.alive)

    def __del__(self) -> None:
        _Counted.alive -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sample, name)
