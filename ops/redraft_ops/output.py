"""What commands write: data on standard output, everything for people's eyes on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def emit_json(value: Any) -> None:
    """One JSON document on standard output. NaN has no JSON: it raises ValueError here, not at the reader."""
    typer.echo(json.dumps(value, allow_nan=False, ensure_ascii=False))


def emit_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on standard output; None is shown as n/a."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    Console().print(table)


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
