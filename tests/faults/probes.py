"""What a test asks a serving worker, and how it waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from .deployment import Process


def answers(url: str) -> bool:
    """Whether a serving worker is ready."""
    try:
        return httpx.get(f"{url}/ready", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def metric(url: str, name: str, label: str = "") -> float:
    """Sum of a family's samples on /metrics, of those that have a label such as `result="rejected"`."""
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    found = [line for line in lines if line.startswith((name + "{", name + " ")) and label in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def served(url: str, domain: str = "default") -> Any:
    """The version that a worker serves."""
    drafts = httpx.get(f"{url}/v1/drafts", timeout=30).json()["data"]
    return next((draft["version"] for draft in drafts if draft["domain"] == domain), None)


def waited(condition: Callable[[], bool], seconds: float, pause: float = 0.05) -> float:
    """Seconds until a condition held; infinite where it did not within `seconds`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began >= seconds:
            return math.inf
        time.sleep(pause)
    return time.monotonic() - began


def until(
    condition: Callable[[], bool],
    seconds: float,
    problem: str,
    process: Process | None = None,
    pause: float = 0.05,
) -> float:
    """Wait for what a test needs to go on; returns the seconds that it took. Fails after `seconds`."""

    def held() -> bool:
        assert process is None or process.alive, f"{process.name} ended, see {process.log}"
        return condition()

    took = waited(held, seconds, pause)
    assert took < math.inf, f"{problem} after {seconds:g} s"
    return took
