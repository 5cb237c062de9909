"""The rows as one table of at most a hundred columns of text, findings below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

WIDTH = 100


def shown(rows: Sequence[Mapping[str, Any]]) -> Group:
    """Table and findings, for a console of `WIDTH` columns."""
    from rich.console import Group
    from rich.text import Text

    lines = [Text(line, overflow="fold") for line in finding_lines(rows)]
    return Group(_table(rows), *lines)


def _table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for name, widths in _COLUMNS.items():
        # Where there is no room words are folded, never numbers.
        if widths is None:
            table.add_column(name, no_wrap=True, justify="right")
        else:
            table.add_column(name, overflow="fold", min_width=widths[0], max_width=widths[1])
    for row in rows:
        table.add_row(*_cells(row))
    return table


_COLUMNS: dict[str, tuple[int, int] | None] = {
    "domain": (7, 12),
    "draft": None,
    "live": None,
    "gain": None,
    "ms/tok": None,
    "K": None,
    "unseen": None,
    "stored": None,
    "lost": None,
    "last round": (8, 20),
    "canary": (6, 6),
    "next": (5, 8),
}
"""The narrowest and the widest that a column of words becomes; None: numbers."""


def _cells(row: Mapping[str, Any]) -> list[str]:
    version = row["version"]
    return [
        row["domain"],
        "base" if version == "base" else f"v{version}",
        _rate(row["acceptance_rate"]),
        "n/a" if row["measured_gain"] is None else f"{row['measured_gain']:.2f}",
        "n/a" if row["time_per_token_ms"] is None else f"{row['time_per_token_ms']:.1f}",
        "off" if row["speculation"] == "off" else str(row["num_speculative_tokens"]),
        str(row["unseen"]),
        str(row["stream_length"]),
        str(row["lost"]),
        _last(row),
        "none" if row["canary"] is None else f"v{row['canary']['version']}",
        _next(row["schedule"]),
    ]


def _rate(rate: float | None) -> str:
    return "n/a" if rate is None else f"{rate:.3f}"


def _last(row: Mapping[str, Any]) -> str:
    last = row["last_round"]
    if last is None:
        return row["schedule"]["last_end"] or "none"
    gain = "" if last["gain"] is None else f" {last['gain']:+.3f}"
    return f"v{last['version']} {last['decision'] or 'unsettled'}{gain}"


def _next(schedule: Mapping[str, Any]) -> str:
    from redraft_queue.spoken import duration

    if schedule["running"]:
        return "runs now"
    seconds = schedule["next_in_seconds"]
    if seconds is None:
        return "n/a"
    return duration(seconds) if seconds else "due"


def finding_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per finding; what holds for every domain is said once."""
    common = (
        [said for said in rows[0]["findings"] if all(said in row["findings"] for row in rows)] if rows else []
    )
    if len(rows) < 2:
        common = []
    own = [f"{row['domain']}: {said}" for row in rows for said in row["findings"] if said not in common]
    return [*common, *own]
