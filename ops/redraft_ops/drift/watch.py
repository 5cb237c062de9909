"""Marks when another draft is tried and when it serves, as the serving worker tells it."""

from __future__ import annotations

import http.client
import threading
from typing import Any

from redraft_ops.demo.client import Client
from redraft_ops.drift.result import DriftResult, Mark


class VersionMarks:
    """Looks at the domain's draft again and again for the time of a `with` block."""

    def __init__(self, client: Client, result: DriftResult, seconds: float) -> None:
        self._client, self._result, self._seconds = client, result, seconds
        self._stop = threading.Event()
        self._version: object = None
        self._tried: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> VersionMarks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                cards = self._client.get("/v1/drafts")["data"]
            except (OSError, http.client.HTTPException):
                continue
            for card in cards:
                if card["domain"] == self._client.domain:
                    self._look(card)

    def _look(self, card: dict[str, Any]) -> None:
        trial = card.get("trial") or {}
        tried = trial.get("version") if trial.get("kind") == "canary" else None
        answers = len(self._result.answers)
        if tried is not None and tried != self._tried:
            self._result.marks.append(Mark(answers, "tried", f"version {tried} is tried"))
        if self._version is not None and card["version"] != self._version:
            self._result.marks.append(Mark(answers, "serves", f"version {card['version']} serves"))
        self._version, self._tried = card["version"], tried
