"""Bounds that hold at all times at once: one may look after every request and stop when one likes.

A fixed-sample interval that is looked at again and again excludes the truth sooner or later. Here the
boundary is the two-sided normal mixture (Robbins 1970; Howard, Ramdas, McAuliffe, Sekhon 2021, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", equation 14), applied to a ratio by the delta method with
the variance estimated from the clusters, which is valid asymptotically (Waudby-Smith, Arbour, Sinha, Kennedy,
Ramdas 2024, "Time-uniform central limit theory and asymptotic confidence sequences").

Arms are drawn independently per request, so load that hits requests which run together widens both arms'
spread and favours neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from redraft_serving.canary.moments import Moments

_SHARPEST = 3.0
"""The sequence is sharpest where the margin is this many standard errors: about where decisions fall."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """An estimate and the interval that holds the truth at all times with the stated probability."""

    estimate: float
    low: float
    high: float


def acceptance_difference(new: Moments, old: Moments, error_rate: float, margin: float) -> Bounds | None:
    """Bounds of acceptance(new) - acceptance(old), clustered by request; None without data."""
    if min(new.tested, old.tested) <= 0 or min(new.requests, old.requests) < 2:
        return None
    estimate = new.accepted / new.tested - old.accepted / old.tested
    variance = _acceptance_variance(new) + _acceptance_variance(old)
    return _bounds(estimate, variance, error_rate, margin)


def slowdown(new: Moments, old: Moments, error_rate: float, margin: float) -> Bounds | None:
    """Bounds of seconds per token(new) / seconds per token(old) - 1; None without data.

    Taken on the logarithm, where both directions weigh alike. `margin` is relative too.
    """
    if min(new.emitted, old.emitted, new.seconds, old.seconds) <= 0 or min(new.requests, old.requests) < 2:
        return None
    estimate = math.log((new.seconds / new.emitted) / (old.seconds / old.emitted))
    variance = _log_time_variance(new) + _log_time_variance(old)
    found = _bounds(estimate, variance, error_rate, math.log1p(margin))
    return Bounds(*(math.expm1(min(x, 700.0)) for x in (found.estimate, found.low, found.high)))


def radius(variance: float, error_rate: float, margin: float) -> float:
    """Half width of the sequence where the estimate has this variance.

    In intrinsic time v = 1 / variance, the sum v * (estimate - truth) stays below
    sqrt((v + r) log((v + r) / (r error_rate^2))) at all times with probability 1 - error_rate.
    """
    if variance <= 0:
        return 0.0
    v = 1.0 / variance
    r = _mixture(margin, error_rate)
    return math.sqrt((v + r) * (math.log((v + r) / r) - 2.0 * math.log(error_rate))) / v


def _mixture(margin: float, error_rate: float) -> float:
    """The precision r of the mixture that makes the sequence sharpest near v = (3 / margin)^2.

    Howard et al. 2021, proposition 3, with Lambert's W_{-1}(-x e^-1) taken to first order.
    """
    v = (_SHARPEST / margin) ** 2
    width = -2.0 * math.log(error_rate)
    return v / (width + math.log1p(width))


def _bounds(estimate: float, variance: float, error_rate: float, margin: float) -> Bounds:
    half = radius(variance, error_rate, margin)
    return Bounds(estimate, estimate - half, estimate + half)


def _acceptance_variance(m: Moments) -> float:
    """Delta method: a ratio A / T of sums has the variance sum((a - A/T t)^2) / T^2."""
    rate = m.accepted / m.tested
    squares = m.accepted_accepted - 2 * rate * m.tested_accepted + rate * rate * m.tested_tested
    return _unbiased(squares, m.requests) / m.tested**2


def _log_time_variance(m: Moments) -> float:
    """Of log(S / E): sum((s - S/E e)^2) / S^2."""
    rate = m.seconds / m.emitted
    squares = m.seconds_seconds - 2 * rate * m.emitted_seconds + rate * rate * m.emitted_emitted
    return _unbiased(squares, m.requests) / m.seconds**2


def _unbiased(squares: float, requests: float) -> float:
    # Rounding may leave a tiny negative number where all requests are alike.
    return max(0.0, squares) * requests / (requests - 1)
