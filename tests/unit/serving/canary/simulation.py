"""Simulated live traffic: requests are clusters, and those that run together share the load.

20 to 300 emitted tokens a request (log-normal, median about 80), a request's acceptance beta-distributed with
a spread of about 14 points, K = 4, and a load that moves slowly by about 25 % and hits eight neighbours at
once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from redraft_serving.canary.moments import Moments
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.verdict import Verdict, judge_canary, judge_watch

Array = NDArray[np.float64]

K = 4
CONCENTRATION = 10.0
ROUND_SECONDS = 0.03
TOGETHER = 8
LOOK_EVERY = 100
"""Requests between two looks at the evidence, and what the lengths of runs are multiples of."""


@dataclass(frozen=True)
class End:
    """How a run ended, after how many requests of both arms together."""

    outcome: str
    requests: int
    verdict: Verdict


def _load(rng: np.random.Generator, n: int, spread: float = 0.25, memory: float = 0.9) -> Array:
    """A slow swing of the speed (autoregressive on the logarithm), the same for neighbours."""
    steps = rng.normal(0, spread * np.sqrt(1 - memory**2), n // TOGETHER + 1)
    values, value = np.empty(len(steps)), rng.normal(0, spread)
    for i, step in enumerate(steps):
        value = memory * value + step
        values[i] = value
    return np.exp(np.repeat(values, TOGETHER)[:n])


def requests(rng: np.random.Generator, acceptance: Array, slower: Array) -> Array:
    """One row of moments per request, given the expected acceptance and the slow-down of each [N]."""
    n = len(acceptance)
    emitted = np.clip(np.round(rng.lognormal(4.4, 0.7, n)), 20, 300)
    rate = rng.beta(acceptance * CONCENTRATION, (1 - acceptance) * CONCENTRATION)
    powers = rate[:, None] ** np.arange(K + 1)
    rounds = np.maximum(1, np.round(emitted / powers.sum(1)))
    tested = np.maximum(1, np.round(rounds * powers[:, :K].sum(1)))
    accepted = rng.binomial(tested.astype(int), rate)
    seconds = rounds * ROUND_SECONDS * slower * _load(rng, n) * np.exp(rng.normal(0, 0.1, n))
    one, t, a, e, s = np.ones(n), tested, accepted, emitted, seconds
    return np.stack([one, t, a, e, s, t * t, t * a, a * a, e * e, e * s, s * s], axis=1)


def _sums(rows: Array, mask: Array) -> Array:
    """What one arm has gathered at each look."""
    return np.cumsum((rows * mask[:, None]).reshape(-1, LOOK_EVERY, rows.shape[1]).sum(1), axis=0)


def canary(
    seed: int,
    difference: float,
    slower: float,
    settings: CanarySettings,
    n: int,
    acceptance: float = 0.65,
) -> End:
    """A challenger whose acceptance differs by `difference` and whose time by the factor `slower`."""
    rng = np.random.default_rng(seed)
    new = rng.random(n) < settings.share
    rows = requests(rng, np.where(new, acceptance + difference, acceptance), np.where(new, slower, 1.0))
    looks = zip(_sums(rows, new), _sums(rows, ~new), strict=True)
    for look, (challenger, champion) in enumerate(looks, start=1):  # noqa: B007
        verdict = judge_canary(Moments(*challenger), Moments(*champion), 0.0, settings)
        if verdict.outcome != "continue":
            break
    return End(verdict.outcome, look * LOOK_EVERY, verdict)


def watch(seed: int, champion: Array, previous: Array, settings: CanarySettings, slower: float = 1.0) -> End:
    """A champion and the version before, whose expected acceptances are given per request [N]."""
    rng = np.random.default_rng(seed)
    control = rng.random(len(champion)) < settings.watch_share
    rows = requests(rng, np.where(control, previous, champion), np.where(control, 1.0, slower))
    old_start = new_start = np.zeros(rows.shape[1])
    looks = zip(_sums(rows, ~control), _sums(rows, control), strict=True)
    for look, (new, old) in enumerate(looks, start=1):  # noqa: B007
        before = Moments(*(old - old_start))
        verdict = judge_watch(Moments(*(new - new_start)), before, settings)
        if verdict.outcome != "continue":
            break
        if before.requests >= settings.watch_window_requests:
            old_start, new_start = old, new
    return End(verdict.outcome, look * LOOK_EVERY, verdict)
