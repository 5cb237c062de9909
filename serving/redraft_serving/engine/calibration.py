"""Times of a few shapes, taken once at the start: what the policy knows before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product

import torch

from redraft_serving.engine.cache import SlotCache
from redraft_serving.engine.draft_model import DraftModelProposer
from redraft_serving.engine.forward.decoder import Decoder, read
from redraft_serving.engine.parts import Parts
from redraft_serving.policy.types import RoundTimes

REPEATS = 3
DRAFT_STEPS = (1, 4)
BUDGET_SECONDS = 5.0
"""Shapes that are not measured by then are left to the rounds themselves."""
CONTEXT = 256
"""Tokens that a measured pass attends to, where the window allows it."""


@torch.inference_mode()
def calibrate(parts: Parts) -> list[RoundTimes]:
    """Measure passes of target and draft for one row and for all slots, narrow and wide."""
    deadline = time.monotonic() + BUDGET_SECONDS
    slots, widest = parts.cache.slots, parts.planner.most + 1
    found: list[RoundTimes] = []
    for rows, width in _shapes(slots, widest):
        if time.monotonic() > deadline:
            break
        for seconds in _timed(lambda r=rows, w=width: _pass(parts.target, parts.cache, r, w)):  # type: ignore[misc]
            found.append(RoundTimes(rows, width, verify=seconds))
    if isinstance(parts.proposer, DraftModelProposer):
        decoder, cache = parts.proposer.weights.base.decoder, parts.proposer.cache
        for rows, steps in product(sorted({1, slots}), DRAFT_STEPS):
            for seconds in _timed(lambda r=rows, s=steps: _steps(decoder, cache, r, s)):  # type: ignore[misc]
                found.append(
                    RoundTimes(rows, 1, verify=0.0, draft_rows=rows, draft_steps=steps, draft=seconds)
                )
        chunk = min(parts.planner.gap, cache.bin // 2)
        for seconds in _timed(lambda: _pass(decoder, cache, 1, chunk, keep=1)):
            found.append(RoundTimes(1, 1, verify=0.0, draft_rows=1, draft=seconds, catch_up_tokens=chunk))
    return found


def _shapes(slots: int, widest: int) -> Iterator[tuple[int, int]]:
    for width in sorted({1, 2, 4, widest}):
        for rows in sorted({1, slots}):
            if width <= widest:
                yield rows, width


def _timed(run: Callable[[], None]) -> list[float]:
    """Seconds of each repeat; the first run, which allocates, does not count."""
    run()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return seconds


def _steps(decoder: Decoder, cache: SlotCache, rows: int, steps: int) -> None:
    """As a round drafts: the first step reads two tokens, the others one."""
    for step in range(steps):
        _pass(decoder, cache, rows, 1 if step else 2, keep=1)


def _pass(decoder: Decoder, cache: SlotCache, rows: int, width: int, keep: int = 0) -> None:
    start = min(CONTEXT, cache.bin // 2)
    width = min(width, cache.bin - start)
    tokens = torch.zeros(rows, width, dtype=torch.long, device=cache.device)
    logits = read(decoder, cache, list(range(rows)), tokens, [start] * rows, keep=keep or width)
    logits[-1, -1].argmax().item()  # waits for a device that works on its own
