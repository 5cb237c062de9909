"""Families of Prometheus samples from plain values. What has no number is left out: never NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Values = Sequence[tuple[Mapping[str, str], float | None]]
"""(labels, value), the same label names in each; None where there is no data."""


def counter(name: str, text: str, values: Values) -> Metric:
    """A total that never falls; `_total` is added to the name."""
    return _fill(CounterMetricFamily(name, text, labels=_names(values)), values)


def gauge(name: str, text: str, values: Values) -> Metric:
    """A value of now."""
    return _fill(GaugeMetricFamily(name, text, labels=_names(values)), values)


def _names(values: Values) -> list[str]:
    return list(values[0][0]) if values else []


def _fill(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for labels, value in values:
        if value is not None and math.isfinite(value):
            family.add_metric(list(labels.values()), value)
    return family
