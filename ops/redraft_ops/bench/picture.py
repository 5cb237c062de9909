"""The picture of a bench: tokens per second, and the time between tokens. No display is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"off": "#8a8f98", "auto": "#2e7d32"}
FIXED, LIBRARY, PEER = "#1f6feb", "#d9822b", "#7c3aed"
STYLE = {
    "figure.facecolor": "white",
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "grid.color": "#e5e7eb",
    "font.size": 10,
    "legend.frameon": False,
    "text.parse_math": False,
}
ROW_INCHES = 0.34


def speeds(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """One bar per run with its tokens/s (left), and its median and 99th percentile between tokens (right)."""
    with matplotlib.rc_context(STYLE):
        height = 1.6 + ROW_INCHES * max(3, len(rows))
        figure = Figure(figsize=(11, height), dpi=130, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        places = range(len(rows))
        values = [row["tokens_per_second"] or 0.0 for row in rows]
        bars = left.barh(places, values, color=[_colour(str(row["name"])) for row in rows])
        left.bar_label(bars, labels=[_label(row) for row in rows], padding=3, fontsize=8)
        left.set_yticks(places, [_named(row) for row in rows])
        left.invert_yaxis()
        left.margins(x=0.25)
        left.set_title("Tokens per second, all streams together")
        _pauses(right, rows)
        return figure


def _pauses(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        middle, worst = row.get("itl_ms_p50"), row.get("itl_ms_p99")
        if middle is not None and worst is not None:
            axes.hlines(place, middle, worst, color="#9ca3af", linewidth=2)
            axes.plot([middle], [place], "o", color=_colour(str(row["name"])))
            axes.plot([worst], [place], "|", color="#374151", markersize=10)
    axes.set_xlim(left=0)
    axes.set_title("Milliseconds per token: median, p99")


def _colour(name: str) -> str:
    base = name.removesuffix("+capture")
    if base in COLOURS:
        return COLOURS[base]
    if base in ("generate", "assisted", "continuous_batching"):
        return LIBRARY
    return FIXED if base[:1] == "k" and base[1:].isdigit() else PEER


def _label(row: Mapping[str, Any]) -> str:
    speed, ratio = row["tokens_per_second"], row.get("ratio_to_off")
    if speed is None:
        return "nothing answered"
    return f"{speed:.1f}" + (f" ({ratio:.2f}x off)" if ratio is not None and row["name"] != "off" else "")


def _named(row: Mapping[str, Any]) -> str:
    parts = [str(row["name"])]
    if row.get("acceptance") is not None:
        parts.append(f"at {row['acceptance']:g}")
    parts.append(str(row["dtype"]))
    clients, rate = row.get("clients"), row.get("rate")
    many = "client" if clients == 1 else "clients"
    parts.append(f"{clients} {many}" if clients else f"{rate:g} requests/s")
    return ", ".join(parts)
