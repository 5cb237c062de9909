"""Confidence intervals for ratios of sums over requests, pure numbers in and out.

The unit of chance is a cluster (a request, or all requests of one prompt), never a token: tokens of one
continuation rise and fall together, so an interval that counts tokens as independent is far too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate with its lower and upper end, in the estimate's own unit."""

    estimate: float
    low: float
    high: float


def ratio_interval(values: Sequence[float], weights: Sequence[float], tail: float) -> Interval:
    """Interval of sum(values) / sum(weights) over clusters, `tail` of chance beyond each end.

    `values` and `weights` hold one number per cluster; values may be differences of two drafts, which makes
    the interval a paired one. The variance is the delete-one-cluster jackknife, which stays honest for few
    and unequal clusters; the quantile is Student's with Kish's effective number of clusters minus one.
    With fewer than two effective clusters nothing can be said: the ends are -inf and +inf.

    Sources: MacKinnon, Nielsen and Webb, "Cluster-robust inference: a guide to empirical practice" (2023),
    eq. 15; Kish, "Survey Sampling" (1965), section 11.7.
    """
    value = np.asarray(values, dtype=np.float64)
    weight = np.asarray(weights, dtype=np.float64)
    total = weight.sum()
    if total <= 0:
        return Interval(math.nan, -math.inf, math.inf)
    estimate = float(value.sum() / total)
    freedom = float(total**2 / np.square(weight).sum()) - 1.0
    if freedom < 1e-9:
        return Interval(estimate, -math.inf, math.inf)
    left_out = (value.sum() - value) / (total - weight)
    count = len(value)
    variance = (count - 1) / count * float(np.square(left_out - estimate).sum())
    reach = student_quantile(1.0 - tail, max(freedom, 1.0)) * math.sqrt(variance)
    return Interval(estimate, estimate - reach, estimate + reach)


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t for `probability` in (0.5, 1) and at least one degree of freedom.

    Below three degrees the next lower whole number is taken, which errs towards a wider interval.
    Hill, "Algorithm 396: Student's t-quantiles" (CACM 13, 1970); relative error below 1e-5 from three on.
    """
    two_tails = 2.0 * (1.0 - probability)
    if freedom < 2.0:
        return 1.0 / math.tan(two_tails * math.pi / 2)
    if freedom < 3.0:
        return math.sqrt(2.0 / (two_tails * (2.0 - two_tails)) - 2.0)
    return _hill(two_tails, freedom)


def _hill(two_tails: float, n: float) -> float:
    a = 1.0 / (n - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2) * n
    y = (d * two_tails) ** (2.0 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(two_tails / 2)
        y = x**2
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y**2)
    else:
        y = (
            (1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0
        ) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)
