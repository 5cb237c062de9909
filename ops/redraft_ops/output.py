"""What commands write: data on standard output, everything for people's eyes on standard error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 140
"""Columns of a table that goes into a pipe or a file."""


def emit_json(value: Any) -> None:
    """One JSON document on standard output. NaN has no JSON: it raises ValueError here, not at the reader."""
    typer.echo(json.dumps(value, allow_nan=False, ensure_ascii=False))


def emit_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on standard output; None is shown as n/a."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    console = Console()
    console.print(table, width=console.width if console.is_terminal else PIPED_WIDTH)


def shown(value: object) -> str:
    """A cell: fractions with four places, absent values as n/a."""
    if value is None:
        return "n/a"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def stderr() -> Console:
    """The console that progress and remarks go to."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def note(sentence: str) -> None:
    """One line for a person, on standard error."""
    typer.echo(sentence, err=True)


def finite(value: float | None) -> float | None:
    """The number, or None where it is not one that JSON has."""
    return value if value is not None and math.isfinite(value) else None
