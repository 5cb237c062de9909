"""Room for serving: whether a round's training may go on now, or waits while requests are answered.

The training process has a low priority in any case. That is enough where cores are what is scarce; on a
shared GPU, or where memory is the bottleneck, only not to run leaves the whole machine to serving.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from redraft_queue.errors import StreamUnavailable
from redraft_queue.load import Load

from redraft_trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
AWAY_SECONDS = 5.0
"""Pause before the next look where Redis doesn't answer: a look may take its whole time-out."""
MOST_CREDIT_SECONDS = 1.0
"""Time that training may have in hand; more would let it hold the machine long after a quiet spell."""


class Room:
    """Decides about twice a second. `load` is asked for the serving workers of this machine and may raise
    StreamUnavailable: what isn't known doesn't stop a training.

    With a share of the time, training runs while it has used no more of it than that. What counts is when
    the training process really waits, not when it was told to: a step may take seconds.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        load: Callable[[], Load],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = settings.serving_share
        self._most_pause = settings.max_pause_seconds
        self._load, self._clock = load, clock
        self._looked = clock()
        self._look_at = self._looked
        self._worked: float | None = None
        self._credit = 0.0
        self._go = True
        self.paused_seconds = 0.0
        """How long the training process has waited."""

    def may_run(self, paused: bool) -> bool:
        """Whether the training may run until the next call; `paused`: its process waits at present."""
        now = self._clock()
        if self._share is None or now < self._look_at:
            return self._go
        passed, self._looked = now - self._looked, now
        self._look_at = now + LOOK_SECONDS
        if paused:
            self.paused_seconds += passed
        self._go = self._decide(self._share, passed, paused)
        return self._go

    def _decide(self, share: float, passed: float, paused: bool) -> bool:
        if self.paused_seconds >= self._most_pause:
            if not self._go:
                logger.warning("the training has waited %.0f s for serving and goes on", self.paused_seconds)
            return True
        if not self._busy():
            self._credit = 0.0
            return True
        used = 0.0 if paused else passed
        self._credit = min(self._credit + share * passed - used, MOST_CREDIT_SECONDS)
        return share > 0 and self._credit >= 0

    def _busy(self) -> bool:
        """Whether requests run or wait, or were answered since the last look."""
        try:
            load = self._load()
        except StreamUnavailable as error:
            logger.debug("how busy serving is isn't known: %s", error)
            self._look_at = self._clock() + AWAY_SECONDS
            return False
        before, self._worked = self._worked, load.busy_seconds
        return load.running + load.waiting > 0 or (before is not None and load.busy_seconds > before)
