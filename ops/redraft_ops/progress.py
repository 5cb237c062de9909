"""Progress for a person, on standard error: a bar per phase on a terminal, a line per phase elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from redraft_ops.output import stderr

LINE_SECONDS = 15.0


class Bar:
    """One phase."""

    def __init__(self, progress: Progress, task: TaskID, title: str, lines: bool) -> None:
        self._progress, self._task, self._title, self._lines = progress, task, title, lines
        self._said = time.monotonic()

    def advance(self) -> None:
        """One more is done; may be called from any thread."""
        self._progress.advance(self._task)
        self._say()

    def set(self, done: float, total: float | None, remark: str = "") -> None:
        """How far it is, and of how much."""
        self._progress.update(
            self._task, completed=done, total=total, description=f"{self._title} {remark}".strip()
        )
        self._say(remark)

    def show(self, event: Mapping[str, Any]) -> None:
        """A training round's own progress: stage, and where it counts steps, step and total."""
        stage, step, total = str(event.get("stage", "waiting")), event.get("step"), event.get("total")
        self.set(float(step or 0), float(total) if total else None, stage)

    def _say(self, remark: str = "") -> None:
        if self._lines and time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            task = next(task for task in self._progress.tasks if task.id == self._task)
            done = "" if task.total is None else f": {task.completed:.0f} of {task.total:.0f}"
            self._progress.console.print(f"  {' '.join(filter(None, (self._title, remark)))}{done}")


class Phases:
    """The phases of a run, shown as they go."""

    def __init__(self) -> None:
        console = stderr()
        self._lines = not console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=self._lines)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, title: str, total: float | None = None) -> Iterator[Bar]:
        """A bar for the time of a `with` block."""
        task = self._progress.add_task(title, total=total)
        if self._lines:
            self._progress.console.print(f"{title} ...")
        started = time.monotonic()
        yield Bar(self._progress, task, title, self._lines)
        self._progress.update(
            task, completed=total if total is not None else 1, total=total or 1, description=title
        )
        if self._lines:
            self._progress.console.print(f"{title}: {time.monotonic() - started:.0f} s")

    def say(self, sentence: str) -> None:
        """A line between the bars."""
        self._progress.console.print(sentence)
