"""Tells apart a machine that became slower from a shape that did.

The logarithm of a measured time is modelled as `cell + speed + noise`: `cell` belongs to one shape and moves
slowly, `speed` is common to all shapes and may move fast. Each measurement is shared out by a Kalman filter
(variances kept, covariances left out). A cell gains uncertainty only in rounds that pass without it: what is
measured all the time is the anchor that speed is told by, and a shape seen rarely is corrected against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean

SPEED_VARIANCE = 0.01**2
"""That speed gains per round."""
CELL_VARIANCE = 0.001**2
"""That a cell gains per round without a measurement of it."""
CLIP = 4.0
"""Standard deviations at which a surprise is cut: a pause of ten rounds must not count as ten."""
OWED = 0.12
"""Least variance, over that of a measurement, of a cell that is not measured all the time."""
MOST_VARIANCE = 0.15**2
"""Of a cell that was measured once, however long ago."""
NOISE = 0.05**2
"""Variance of a measurement's logarithm, until it is known better."""
NOISE_BOUNDS = (1e-4, 0.09)
CALM = 8
"""Rounds without a surprise after which the speed is settled."""
STRIKES = 2
"""Surprises of one cell in a row, amid rounds that were none, after which the cell has moved."""


class Cell:
    """Logarithm of the relative time of one shape, with its variance."""

    __slots__ = ("seen", "strikes", "value", "variance", "visits")

    def __init__(self, value: float, variance: float, seen: int, visits: int = 0) -> None:
        self.value, self.variance, self.seen = value, variance, seen
        self.strikes, self.visits = 0, visits


class Machine:
    """The common speed factor and the noise of each kind of measurement."""

    def __init__(self) -> None:
        self.log_speed = 0.0
        self.clock = 0
        self._variance = SPEED_VARIANCE
        self._noise: dict[str, float] = {}
        self._settled = True
        self._surprises = 0
        self._surprised_at = -CALM

    @property
    def calm(self) -> bool:
        """Whether nothing surprising was measured lately: a good time to compare shapes."""
        return self.clock - self._surprised_at >= CALM

    @property
    def speed(self) -> float:
        """How much slower than at calibration everything is."""
        return exp(self.log_speed)

    def noise(self, kind: str) -> float:
        """Variance of the logarithm of a measured time."""
        return self._noise.get(kind, NOISE)

    def variance(self, kind: str, cell: Cell) -> float:
        """Of a cell's value now: it grows while the cell is not measured.

        What is measured all the time seems certain, but only its sum with the speed is: once it is left, some
        of the noise is owed again.
        """
        absent = self.clock - cell.seen - 1
        if absent <= 0:
            return cell.variance
        owed = max(cell.variance, OWED * self.noise(kind))
        return max(owed, min(MOST_VARIANCE, owed + CELL_VARIANCE * absent))

    def calibrate(self, kind: str, samples: Sequence[Sequence[float]]) -> float:
        """Set the noise from repeated measurements of several shapes; returns it."""
        logs = [[log(seconds) for seconds in shape] for shape in samples if len(shape) > 1]
        freedom = sum(len(shape) - 1 for shape in logs)
        if freedom:
            total = sum((value - fmean(shape)) ** 2 for shape in logs for value in shape)
            self._noise[kind] = _within(total / freedom)
        return self.noise(kind)

    def tick(self) -> None:
        """A round passed."""
        self.clock += 1
        self._variance = min(4.0, self._variance + SPEED_VARIANCE)
        self._settled = self._surprises == 0

    def update(self, kind: str, cell: Cell, seconds: float) -> float:
        """Learn from one measurement; returns by how much the cell moved."""
        cell.variance = self.variance(kind, cell)
        cell.seen = self.clock
        cell.visits += 1
        error = log(seconds) - cell.value - self.log_speed
        noise = self.noise(kind)
        total = cell.variance + self._variance + noise
        limit = CLIP * sqrt(total)
        clipped = min(limit, max(-limit, error))
        self._learn_noise(kind, noise, clipped * clipped - total)
        if clipped != error and not self._strike(cell):
            return self._surprised(clipped, total)
        self._surprises = 0
        return self._share(cell, error, cell.variance + self._variance + noise)

    def _share(self, cell: Cell, error: float, total: float) -> float:
        speed_gain, cell_gain = self._variance / total, cell.variance / total
        self.log_speed += speed_gain * error
        self._variance *= 1.0 - speed_gain
        cell.value += cell_gain * error
        cell.variance *= 1.0 - cell_gain
        cell.strikes = 0
        return cell_gain * error

    def _surprised(self, error: float, total: float) -> float:
        """Too far off: perhaps a pause, perhaps a machine that changed; no cell learns from it."""
        self.log_speed += self._variance / total * error
        self._surprises += 1
        self._surprised_at = self.clock
        if self._surprises >= 3:
            self._variance = min(4.0, self._variance * 4.0)
        return 0.0

    def _strike(self, cell: Cell) -> bool:
        """Whether the cell itself has moved: it surprises again and again while others do not."""
        if not self._settled:
            return False
        cell.strikes += 1
        if cell.strikes < STRIKES:
            return False
        cell.variance = 1.0
        return True

    def _learn_noise(self, kind: str, noise: float, excess: float) -> None:
        self._noise[kind] = _within(noise + 0.02 * excess)


def _within(noise: float) -> float:
    low, high = NOISE_BOUNDS
    return min(high, max(low, noise))
