"""Seconds by (rows, width) of one kind of pass: a cell per measured shape, a reading for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import median

from redraft_serving.policy.interpolation import Shape, between, read
from redraft_serving.policy.speed import Cell, Machine

STALE = 0.002
"""Change of a logarithm after which readings are made anew."""
FRESH = 0.1
"""Variance of a shape before its first measurement: about 30 %."""
VISITS = 3
"""Measurements of a shape after which one pause among them can't deceive."""
HOPE_ROUNDS = 32
"""Rounds for which a hoped cost is kept, while nothing is measured that changes it."""


class CostGrid:
    """The target's pass, or a step of the draft model (width 1)."""

    def __init__(self, kind: str, machine: Machine) -> None:
        self.kind, self._machine = kind, machine
        self._cells: dict[Shape, Cell] = {}
        self._readings: dict[Shape, float] = {}
        self._hopes: dict[Shape, float] = {}
        self._hoped_at = self._moved = 0.0

    def __bool__(self) -> bool:
        return bool(self._cells)

    def calibrate(self, measured: Mapping[Shape, Sequence[float]]) -> None:
        """Set shapes from repeated measurements."""
        noise = self._machine.calibrate(self.kind, list(measured.values()))
        for shape, seconds in measured.items():
            # A median of n has about pi / 2 times the variance of a mean of n.
            variance = 1.6 * noise / len(seconds)
            value = log(median(seconds)) - self._machine.log_speed
            self._cells[shape] = Cell(value, variance, self._machine.clock, len(seconds))
        self._forget_readings()

    def observe(self, shape: Shape, seconds: float) -> None:
        """Learn from one pass."""
        cell = self._cells.get(shape)
        if cell is None:
            # Near what its neighbours say, but soon on its own feet.
            known = self._relative(shape)
            value = log(known) if known > 0 else log(seconds) - self._machine.log_speed
            cell = self._cells[shape] = Cell(value, FRESH, self._machine.clock)
            self._moved = 1.0
        self._moved += abs(self._machine.update(self.kind, cell, seconds))
        if self._moved > STALE:
            self._forget_readings()

    def seconds(self, rows: int, width: int = 1) -> float:
        """At the machine's present speed; 0.0 while nothing is known."""
        return self._relative((rows, width)) * self._machine.speed

    def hoped(self, rows: int, width: int) -> float:
        """The same if what is uncertain about a shape turned out well."""
        if self._machine.clock - self._hoped_at > HOPE_ROUNDS:
            self._hopes.clear()
            self._hoped_at = self._machine.clock
        found = self._hopes.get((rows, width))
        if found is None:
            found = self._hopes[rows, width] = self._hope((rows, width))
        return found * self._machine.speed

    def _hope(self, shape: Shape) -> float:
        """One pause would make a shape look slow for ever: a few measurements do not count against it."""
        firm = {other: cell for other, cell in self._cells.items() if cell.visits >= VISITS}
        if shape in firm:
            return self._lucky(firm[shape])
        if not firm:
            return self._relative(shape)
        low = {other: self._lucky(cell) for other, cell in firm.items()}
        high = {other: exp(cell.value) for other, cell in firm.items()}
        return between(low, high, shape, 0.0) or self._relative(shape)

    def _lucky(self, cell: Cell) -> float:
        return exp(cell.value - sqrt(self._machine.variance(self.kind, cell)))

    def _forget_readings(self) -> None:
        self._readings.clear()
        self._hopes.clear()
        self._moved = 0.0

    def _relative(self, shape: Shape) -> float:
        found = self._readings.get(shape)
        if found is None:
            # A copy, so that another thread may read for a report.
            cells = self._cells.copy()
            known = {other: exp(cell.value) for other, cell in cells.items()}
            own = cells.get(shape)
            found = read(known, shape)
            if own is not None:
                found = self._ordered(shape, own, cells, known)
            self._readings[shape] = found
        return found

    def _ordered(
        self, shape: Shape, own: Cell, cells: Mapping[Shape, Cell], known: Mapping[Shape, float]
    ) -> float:
        """A measured shape, within what better known shapes say of less and of more work."""
        variance = self._machine.variance(self.kind, own)
        surer = {
            other: known[other]
            for other, cell in cells.items()
            if self._machine.variance(self.kind, cell) < variance
        }
        return between(surer, surer, shape, known[shape])
