"""Reads a cost that was never measured off its neighbours. Costs never fall with rows or width."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import inf

Shape = tuple[int, int]
"""Rows, and tokens per row."""
PER_ROW, PER_TOKEN = 0.03, 0.02
"""Share of a lone known cost that one more row, or one more token per row, adds."""


def along(points: Mapping[int, float], x: int, slope: float) -> float:
    """Linear between known points; beyond the last, on with the last slope. `points` must not be empty.

    `slope`: share of a lone point's value that one more unit costs.
    """
    xs = sorted(points)
    i = bisect_left(xs, x)
    if i < len(xs) and xs[i] == x:
        return points[x]
    if i == 0:
        return points[xs[0]] / (1.0 + slope * (xs[0] - x))
    if len(xs) == 1:
        return points[xs[0]] * (1.0 + slope * (x - xs[0]))
    left, right = (xs[-2], xs[-1]) if i == len(xs) else (xs[i - 1], xs[i])
    per_unit = (points[right] - points[left]) / (right - left)
    if i == len(xs):
        return points[right] + max(0.0, per_unit) * (x - right)
    return points[left] + per_unit * (x - left)


def read(points: Mapping[Shape, float], shape: Shape) -> float:
    """Cost of a shape from measured ones; 0.0 where none is known."""
    by_rows: dict[int, dict[int, float]] = {}
    for (rows, width), seconds in points.items():
        by_rows.setdefault(rows, {})[width] = seconds
    return between(points, points, shape, _guess(by_rows, *shape)) if by_rows else 0.0


def _guess(by_rows: Mapping[int, Mapping[int, float]], rows: int, width: int) -> float:
    own = by_rows.get(rows)
    if own is not None and (len(own) > 1 or len(by_rows) == 1):
        return along(own, width, PER_TOKEN)
    others = {r: along(line, width, PER_TOKEN) for r, line in by_rows.items() if r != rows}
    if own is None:
        return along(others, rows, PER_ROW)
    # One width is known for these rows: the shape over widths comes from the nearest rows.
    (known, seconds), near = next(iter(own.items())), min(others, key=lambda r: abs(r - rows))
    return seconds * others[near] / along(by_rows[near], known, PER_TOKEN)


def between(low: Mapping[Shape, float], high: Mapping[Shape, float], shape: Shape, guess: float) -> float:
    """A guess, but at least what less work took and, above all, no more than more work took."""
    rows, width = shape
    least = max((s for (r, w), s in low.items() if r <= rows and w <= width), default=0.0)
    most = min((s for (r, w), s in high.items() if r >= rows and w >= width), default=inf)
    return min(most, max(least, guess))
