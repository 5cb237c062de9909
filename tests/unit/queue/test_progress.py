"""The progress of a training round: Celery's state every second, a line in the worker's log now and then."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from redraft_queue import rounds


def test_progress_is_stored_and_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stored = iter([0.0, 0.5, 2.0, 16.0]), []

    def update_state(state: str, meta: dict[str, Any]) -> None:
        stored.append((state, meta["step"]))

    task: Any = SimpleNamespace(request=SimpleNamespace(id="r1"), update_state=update_state)
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = rounds._Progress(task)
    with caplog.at_level(logging.INFO, logger="redraft_queue"):
        for step in range(4):
            progress({"stage": "train", "step": step})
    assert stored == [("PROGRESS", 0), ("PROGRESS", 2), ("PROGRESS", 3)]
    assert caplog.messages == ["round r1: stage=train step=0", "round r1: stage=train step=3"]
