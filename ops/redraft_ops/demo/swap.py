"""One training round asked for through Celery, and the swap of its draft while streams run."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redraft_ops.demo.client import Answer, Client
from redraft_ops.demo.plan import DemoPlan
from redraft_ops.demo.traffic import Prompts, running_streams
from redraft_ops.errors import DemoFailed
from redraft_ops.processes import Children
from redraft_ops.progress import Bar
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from celery import Celery

TICK_SECONDS = 0.1
TRAINING = {"train", "validate"}


@dataclass(frozen=True)
class RoundOutcome:
    """What a round decided, and what clients saw while its draft was swapped in."""

    result: dict[str, Any]
    answers: list[Answer] = field(default_factory=list)
    swap: tuple[float, float] | None = None
    """Clock at the last sight of the old draft and at the first of the new one; None without a swap."""

    @property
    def promoted(self) -> bool:
        """True if the round's draft became champion."""
        return self.result.get("decision") == "promoted"


class VersionWatch:
    """Looks at the served version many times a second and notes between which two readings it changed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._seen: tuple[float, object] = (time.monotonic(), served_version(client))
        self.changes: list[tuple[float, float, object]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> VersionWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10.0)

    def change_to(self, version: object) -> tuple[float, float] | None:
        """(last sight of what was before, first sight of `version`), once it serves."""
        return next(((start, end) for start, end, now in self.changes if str(now) == str(version)), None)

    def _watch(self) -> None:
        while not self._stop.wait(TICK_SECONDS / 2):
            asked = time.monotonic()
            try:
                version = served_version(self._client)
            except (OSError, http.client.HTTPException):
                continue
            if version != self._seen[1]:
                self.changes.append((self._seen[0], time.monotonic(), version))
            self._seen = (asked, version)


@dataclass
class RoundUnderTraffic:
    """Runs one round; once training proper is over, keeps streams running until the new draft serves."""

    stack: Stack
    client: Client
    plan: DemoPlan
    prompts: Prompts
    children: Children
    sampling: dict[str, Any]

    def run(self, bar: Bar, done: Callable[[Answer], None]) -> RoundOutcome:
        """Raises DemoFailed if the round fails or takes longer than the plan allows."""
        from redraft_queue.celery_app import build_app, request_round

        app = build_app(self.stack.redis_url, self.stack.settings.queue)
        round_id = request_round(app, self.plan.domain, force=True)
        result: dict[str, Any] = {}
        answers: list[Answer] = []
        swap: tuple[float, float] | None = None
        with VersionWatch(self.client) as watch, ExitStack() as streams:
            training = _Training(self.plan.streams_from)
            for result in self._progress(app, round_id):
                bar.show(result)
                if training.nearly_over(result):
                    keep = running_streams(
                        self.client, self.prompts, self.plan.clients, done, **self.sampling
                    )
                    answers = streams.enter_context(keep)
            if result.get("decision") == "promoted":
                swap = self._await(watch, result["version"])
        return RoundOutcome(result, answers, swap)

    def _progress(self, app: Celery, round_id: str) -> Iterator[dict[str, Any]]:
        """What the round tells of itself; the last one is its result."""
        from redraft_queue.celery_app import round_status

        deadline = time.monotonic() + self.plan.round_seconds
        while not (status := round_status(app, round_id)).finished:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the training round took longer than {self.plan.round_seconds:.0f} s")
            self.children.check()
            yield dict(status.details)
            time.sleep(TICK_SECONDS)
        if status.state != "SUCCESS":
            raise DemoFailed(f"the training round failed: {status.details.get('error', status.state)}")
        yield dict(status.details)

    def _await(self, watch: VersionWatch, version: object) -> tuple[float, float]:
        deadline = time.monotonic() + self.plan.swap_seconds
        while (change := watch.change_to(version)) is None:
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"version {version} was promoted but does not serve after {self.plan.swap_seconds:.0f} s"
                )
            self.children.check()
            time.sleep(TICK_SECONDS)
        time.sleep(self.plan.swap_tail_seconds)
        return change


class _Training:
    """Tells once when training proper is nearly over: streams before that would only slow it down."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._began = self._told = False

    def nearly_over(self, info: dict[str, Any]) -> bool:
        """True the first time that the share of the steps is done, or that a later stage is told of."""
        stage, step, total = info.get("stage"), info.get("step"), info.get("total")
        self._began |= stage in TRAINING
        reached = bool(total) and float(step or 0) >= self._share * float(total or 0)
        if self._told or not (reached or (self._began and stage not in {None, *TRAINING})):
            return False
        self._told = True
        return True


def served_version(client: Client) -> object:
    """The version that serves the client's domain now; None before its first request."""
    for draft in client.get("/v1/drafts")["data"]:
        if draft["domain"] == client.domain:
            return draft["version"]
    return None
