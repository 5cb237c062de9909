"""Heavy tensor work away from the thread that serves.

GNU OpenMP, which torch's wheels carry, keeps a team of threads for every thread that ever ran a parallel
product, for as long as that thread lives. With more such threads than cores it puts them to sleep between
products, and each of the hundred products of a decoding step then pays for waking them: 28 instead of 21 ms a
step on two cores. So whatever loads, packs or checks weights runs on a thread that ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def apart(function: Callable[[], T]) -> T:
    """Run a function on a thread of its own; answers, or raises, what it does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    thread = Thread(target=run, name="redraft-apart", daemon=True)
    thread.start()
    result = future.result()
    thread.join()
    return result
