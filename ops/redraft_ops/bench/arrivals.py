"""When requests arrive in an open loop: as a Poisson process, whatever the server does."""

from __future__ import annotations

import random


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """`count` arrival times in seconds, rising from 0, with independent exponential gaps of mean 1 / `rate`.

    The same seed gives the same times, so that every configuration meets the same traffic.
    """
    rng = random.Random(seed)
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + rng.expovariate(rate))
    return times[:count]
