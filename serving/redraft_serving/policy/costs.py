"""What a round takes: the target's pass by (rows, width), draft steps by rows, catch-up by token, the rest by
rows.

Filled by a calibration at start, refined by every round. `speed.Machine` keeps apart what all shapes have in
common; `grid.CostGrid` keeps the shapes and reads those that were never measured off their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import median

from redraft_serving.policy.grid import CostGrid
from redraft_serving.policy.interpolation import PER_ROW, Shape, along
from redraft_serving.policy.speed import Machine
from redraft_serving.policy.types import RoundTimes

UNKNOWN_STEP = 0.25
"""Draft step over plain verification, until one was measured."""
GAIN = 0.02
"""Weight of a new measurement of the rest, once there are some."""


class _Mean:
    """A decayed mean of a logarithm that no single measurement moves far."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count, self.value = 0, 0.0

    def add(self, value: float) -> None:
        """One measurement; a surprise counts as a factor of e at most."""
        self.count += 1
        error = value - self.value
        if self.count > 1:
            error = min(1.0, max(-1.0, error))
        self.value += max(GAIN, 1.0 / self.count) * error


class CostTable:
    """Seconds of the parts of a round, at the machine's present speed."""

    def __init__(self) -> None:
        self.machine = Machine()
        self._verify = CostGrid("verify", self.machine)
        self._draft = CostGrid("draft", self.machine)
        self._first = 0.0
        """By how many steps the first step of a round is longer than the others: it reads more tokens."""
        self._rest: dict[tuple[int, bool], _Mean] = {}
        self._catch_up = _Mean()

    @property
    def known(self) -> bool:
        """Whether any pass of the target was measured."""
        return bool(self._verify)

    @property
    def draft_known(self) -> bool:
        """Whether any pass of the draft was measured."""
        return bool(self._draft)

    def calibrate(self, measured: Iterable[RoundTimes]) -> None:
        """Start from shapes measured on purpose; parts of no time are parts not measured."""
        verify: dict[Shape, list[float]] = {}
        draft: dict[tuple[int, int], list[float]] = {}
        for times in measured:
            if times.verify > 0:
                verify.setdefault((times.rows, times.width), []).append(times.verify)
            if times.draft > 0 and times.draft_steps and not _behind(times):
                draft.setdefault((times.draft_rows, times.draft_steps), []).append(times.draft)
            elif times.draft > 0 and times.catch_up_tokens:
                self._catch_up.add(log(times.draft / times.catch_up_tokens) - self.machine.log_speed)
            self._observe_rest(times)
        self._verify.calibrate(verify)
        self._calibrate_draft(draft)

    def observe(self, times: RoundTimes) -> None:
        """Learn from one round."""
        self.machine.tick()
        if times.verify > 0:
            self._verify.observe((times.rows, times.width), times.verify)
        if times.draft > 0 and times.draft_steps:
            self._observe_draft(times)
        self._observe_rest(times)

    def verify(self, rows: int, width: int, hoped: bool = False) -> float:
        """Seconds of the target's pass over `width` tokens of each row; 0.0 while nothing is known.

        `hoped`: if what is uncertain about the shape turned out well.
        """
        return self._verify.hoped(rows, width) if hoped else self._verify.seconds(rows, width)

    def draft(self, rows: int, steps: float) -> float:
        """Seconds of the draft model's steps; an assumption while none was measured."""
        if not rows or not steps:
            return 0.0
        if not self._draft:
            return UNKNOWN_STEP * steps * self.verify(rows, 1)
        return (steps + self._first) * self._draft.seconds(rows)

    def rest(self, rows: int, speculating: bool) -> float:
        """Seconds outside the models' passes; 0.0 while nothing is known."""
        means = self._rest.copy()
        same = {r: exp(mean.value) for (r, side), mean in means.items() if side == speculating}
        points = same or {r: exp(mean.value) for (r, _), mean in means.items()}
        return along(points, rows, PER_ROW) * self.machine.speed if points else 0.0

    def catch_up(self) -> float:
        """Seconds per token that the draft has to read before its first step; 0.0 while nothing is known."""
        return exp(self._catch_up.value) * self.machine.speed if self._catch_up.count else 0.0

    def _calibrate_draft(self, measured: Mapping[tuple[int, int], Sequence[float]]) -> None:
        """From (rows, steps): few and many steps of the same rows tell how long the first one is."""
        longer = []
        for (rows, few), seconds in measured.items():
            many = max(steps for r, steps in measured if r == rows)
            if few < many:
                per_step = (median(measured[rows, many]) - median(seconds)) / (many - few)
                longer.append(median(seconds) / per_step - few if per_step > 0 else 1.0)
        self._first = min(1.0, max(0.0, median(longer))) if longer else self._first
        steps: dict[Shape, list[float]] = {}
        for (rows, count), seconds in measured.items():
            steps.setdefault((rows, 1), []).extend(s / (count + self._first) for s in seconds)
        self._draft.calibrate(steps)

    def _observe_draft(self, times: RoundTimes) -> None:
        if not _behind(times):
            self._draft.observe((times.draft_rows, 1), times.draft / (times.draft_steps + self._first))
            return
        beyond = times.draft - self.draft(times.draft_rows, times.draft_steps)
        if beyond > 0:
            self._catch_up.add(log(beyond / times.catch_up_tokens) - self.machine.log_speed)

    def _observe_rest(self, times: RoundTimes) -> None:
        if times.rest > 0:
            mean = self._rest.setdefault((times.rows, times.width > 1), _Mean())
            mean.add(log(times.rest) - self.machine.log_speed)


def _behind(times: RoundTimes) -> bool:
    """Up to two tokens per row ride in the first step; more are a catch-up with a price of its own."""
    return times.catch_up_tokens > 2 * times.draft_rows
