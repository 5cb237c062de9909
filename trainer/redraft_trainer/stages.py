"""How long the stages of a round took, for whoever looks at its run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Stages:
    """Times the parts of a round that its worker does; the training process times its own."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time of a `with` block for a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[stage] = time.monotonic() - started

    def metrics(self, result: Mapping[str, Any]) -> dict[str, float | None]:
        """Metrics of the run: seconds by stage, those of waiting for serving, and the child's peak memory."""
        seconds = {**self._seconds, **result["seconds"]}
        return {
            **{f"seconds_{stage}": round(value, 3) for stage, value in seconds.items()},
            "paused_seconds": result["paused_seconds"],
            "child_peak_mb": result["child_peak_mb"],
        }
