"""A drift run for people: one table and one picture."""

from __future__ import annotations

import json
from pathlib import Path

from redraft_ops.drift.plan import DriftPlan
from redraft_ops.drift.result import WINDOW, DriftResult, moving_acceptance

COLOURS = {"moved": "#b3261e", "tried": "#9aa5b1", "serves": "#2e7d32"}


def rows(result: DriftResult, plan: DriftPlan) -> list[tuple[str, str]]:
    """What was found, line by line."""
    back = result.recovered_after(plan.recovered_share)
    return [
        ("acceptance before the move", _rate(result.level_before)),
        ("lowest after it", _rate(result.lowest())),
        ("at the end", _rate(next(iter(moving_acceptance(result.answers)[-1:]), None))),
        (
            f"requests until it was back at {plan.recovered_share:.0%}",
            "never" if back is None else str(back),
        ),
        ("requests failed", f"{len(result.failures)} of {len(result.answers)}"),
        ("seconds", f"{result.seconds:.0f}"),
    ]


def write_report(result: DriftResult, plan: DriftPlan, out: Path) -> Path:
    """Write drift.png and drift.json into `out`; returns the picture's path."""
    (out / "drift.json").write_text(json.dumps(result.to_json(plan.recovered_share), indent=2) + "\n")
    path = out / "drift.png"
    _picture(result, path)
    return path


def _picture(result: DriftResult, path: Path) -> None:
    """Moving acceptance along the requests, with what happened between them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rates = moving_acceptance(result.answers)
    points = [(at + 1, rate) for at, rate in enumerate(rates) if rate is not None]
    axes.plot([at for at, _ in points], [rate for _, rate in points], color="#1f4e8c", linewidth=1.8)
    top = max((rate for _, rate in points), default=1.0) * 1.35
    for place, mark in enumerate(result.marks):
        colour = COLOURS[mark.kind]
        axes.axvline(mark.answers, color=colour, linestyle="--", linewidth=1)
        # Neighbouring labels at two heights, so that they don't lie on each other.
        height = top * (0.98 if place % 2 else 0.9)
        axes.annotate(mark.text, (mark.answers, height), xytext=(3, 0), textcoords="offset points",
                      color=colour, fontsize=8, va="top")  # fmt: skip
    axes.set(
        title="Live acceptance while the traffic changes",
        xlabel="requests answered",
        ylabel=f"accepted / tested, last {WINDOW} requests",
        ylim=(0, top),
    )
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120, facecolor="white")


def _rate(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
