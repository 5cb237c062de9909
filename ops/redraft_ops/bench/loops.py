"""Many requests at once: a closed loop of N clients, or an open loop where requests come when they come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from redraft_ops.bench.answers import Answer, Ask, Block

Send = Callable[[Ask, float], Answer]
"""Answer a request; the number is the clock's reading (`time.perf_counter`) at which it was due."""


def closed_loop(send: Send, asks: Sequence[Ask], clients: int) -> Block:
    """`clients` streams at a time: each sends its next request when the last one has ended."""
    todo: queue.SimpleQueue[Ask] = queue.SimpleQueue()
    for ask in asks:
        todo.put(ask)
    answers: list[Answer] = []

    def work() -> None:
        while True:
            try:
                ask = todo.get_nowait()
            except queue.Empty:
                return
            answers.append(send(ask, time.perf_counter()))

    return _timed([work] * min(clients, len(asks)), answers)


def open_loop(send: Send, asks: Sequence[Ask], arrivals: Sequence[float]) -> Block:
    """Each request is sent at its own time, however many still run.

    Times count from when a request was due, so that a late start of ours is not hidden from the figures.
    """
    answers: list[Answer] = []
    started = time.perf_counter()

    def one(ask: Ask, after: float) -> Callable[[], None]:
        def work() -> None:
            time.sleep(max(0.0, started + after - time.perf_counter()))
            answers.append(send(ask, started + after))

        return work

    return _timed([one(ask, after) for ask, after in zip(asks, arrivals, strict=True)], answers)


def _timed(work: Sequence[Callable[[], None]], answers: list[Answer]) -> Block:
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # joined in slices, so that Ctrl-C is heard
            thread.join(0.5)
    seconds = time.perf_counter() - started
    return Block(tuple(sorted(answers, key=lambda answer: answer.index)), seconds)
