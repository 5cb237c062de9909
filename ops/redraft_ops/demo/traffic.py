"""Many streamed requests at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redraft_ops.demo.client import Answer, Client

Done = Callable[[Answer], None]


class Prompts:
    """Hands out each prompt once, to any thread."""

    def __init__(self, prompts: list[str]) -> None:
        self._prompts = iter(prompts)
        self._lock = threading.Lock()
        self.total = len(prompts)

    def take(self, count: int) -> list[str]:
        """The next `count` prompts, fewer at the end."""
        with self._lock:
            return [prompt for _, prompt in zip(range(count), self._prompts, strict=False)]


def run_all(client: Client, prompts: list[str], clients: int, done: Done, **sampling: Any) -> list[Answer]:
    """Answer all prompts with `clients` streams at a time; `done` is called per answer, from several
    threads.
    """
    answers: list[Answer] = []
    todo = Prompts(prompts)
    threads = [_thread(client, todo, answers, done, threading.Event(), sampling) for _ in range(clients)]
    for thread in threads:
        while thread.is_alive():  # joined in slices, so that Ctrl-C is heard
            thread.join(0.2)
    return answers


@contextmanager
def running_streams(
    client: Client, prompts: Prompts, clients: int, done: Done, **sampling: Any
) -> Iterator[list[Answer]]:
    """Keep `clients` streams running for the time of a `with` block; the list is complete after it."""
    answers: list[Answer] = []
    stop = threading.Event()
    threads = [_thread(client, prompts, answers, done, stop, sampling) for _ in range(clients)]
    try:
        yield answers
    finally:
        stop.set()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)


def _thread(
    client: Client,
    prompts: Prompts,
    answers: list[Answer],
    done: Done,
    stop: threading.Event,
    sampling: dict[str, Any],
) -> threading.Thread:
    def work() -> None:
        while not stop.is_set():
            taken = prompts.take(1)
            if not taken:
                return
            answer = client.ask(taken[0], **sampling)
            answers.append(answer)
            done(answer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
