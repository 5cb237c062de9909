"""A real training round beside the servers that are measured, held still and let go by signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redraft_models.registry import Registry
from redraft_queue.stream import connect
from redraft_trainer.context import TrainContext
from redraft_trainer.rounds import run_round
from redraft_trainer.settings import GateSettings

from redraft_ops.errors import BenchFailed
from redraft_ops.settings import Settings

START_SECONDS = 900.0
ENDLESS = 1_000_000
"""Steps, evaluations without a gain, and seconds: the round ends when the bench does."""


class _Ended(Exception):
    """The bench has what it wanted."""


class Beside:
    """`with Beside(settings, redis_url, domain, folder) as training:` trains on the domain's samples, held
    still at first.

    The round is the settings' own, priority, threads and yielding included; only its end is left out.
    Entering raises BenchFailed where it comes to no first step.
    """

    def __init__(self, settings: Settings, redis_url: str, domain: str, folder: Path) -> None:
        self._context = _context(settings, redis_url, folder)
        self._domain = domain
        self._thread = threading.Thread(target=self._train, name="bench-training", daemon=True)
        self._ending = threading.Event()
        self._group: int | None = None
        self._problem: str | None = None
        self.step = 0
        """The last optimiser step."""

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while self.step < 1:
            if self._problem is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise BenchFailed(f"the training did not start: {self._problem or 'it takes too long'}")
            time.sleep(0.1)
        self.hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self.release()
        self._thread.join()

    def hold(self) -> None:
        """Let the training stand still where it is."""
        self._signal(signal.SIGSTOP)

    def release(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise BenchFailed if the training has ended by itself."""
        if self._problem is not None:
            raise BenchFailed(f"the training ended during the bench: {self._problem}")

    def _signal(self, number: signal.Signals) -> None:
        if self._group is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._group, number)

    def _train(self) -> None:
        try:
            result = run_round(self._context, self._domain, "bench", force=True, progress=self._progress)
            self._problem = f"{result.decision}, {result.reason}"
        except _Ended:
            return
        except Exception as error:  # told by whoever waits for the training
            self._problem = str(error)

    def _progress(self, event: Mapping[str, Any]) -> None:
        if self._ending.is_set():
            raise _Ended
        if "pid" in event and self._group is None:
            self._group = os.getpgid(event["pid"])
        if event["stage"] == "train":
            self.step = int(event["step"])


def _context(settings: Settings, redis_url: str, folder: Path) -> TrainContext:
    endless = {"max_steps": ENDLESS, "patience": ENDLESS}
    queue = settings.queue.model_copy(update={"round_time_limit_seconds": ENDLESS})
    folder.mkdir(parents=True, exist_ok=True)
    return TrainContext(
        models=settings.models,
        trainer=settings.trainer.model_copy(update=endless),
        gate=GateSettings(min_heldout_requests=1, min_heldout_tokens=1),
        queue=queue,
        data_dir=folder,
        cache_dir=settings.cache_dir,
        registry=Registry(f"sqlite:///{folder / 'mlflow.db'}", artifact_root=folder / "artifacts"),
        client=connect(redis_url, queue),
    )
