"""Pictures of a training round for MLflow: figures out, nothing shown, written or kept open.

Figures are made without pyplot, so they need no display, share no state between threads and free themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from redraft_trainer.reports import MeasureReport, PositionScore

CHAMPION, CANDIDATE, LOSS, GRID = "#8a8f98", "#1f6feb", "#c2410c", "#e5e7eb"

_STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "grid.color": GRID,
    "font.size": 10,
    "legend.frameon": False,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class VersionPoint:
    """One version in the picture over versions: its acceptance, the interval's ends, and what became of
    it.
    """

    version: int
    acceptance_rate: float
    low: float | None = None
    high: float | None = None
    promoted: bool = False


def acceptance_by_position(champion: MeasureReport, candidate: MeasureReport, domain: str = "") -> Figure:
    """Measured acceptance of both drafts along the answer, with the number of tokens behind each place."""
    with _figure() as figure:
        axes = figure.subplots()
        labels = [_span(score) for score in candidate.positions]
        places = {score.first: index for index, score in enumerate(candidate.positions)}
        for report, color, name in ((champion, CHAMPION, "champion"), (candidate, CANDIDATE, "candidate")):
            shown = [s for s in report.positions if s.first in places and s.acceptance_rate is not None]
            xs, ys = [places[s.first] for s in shown], [s.acceptance_rate or 0.0 for s in shown]
            axes.plot(xs, ys, marker="o", color=color, label=_named(name, report))
        axes.set_xticks(
            range(len(labels)),
            [
                f"{label}\n{_count(score.tokens)}"
                for label, score in zip(labels, candidate.positions, strict=True)
            ],
            fontsize=8,
        )
        _rates(axes, f"Acceptance along the answer{_of(domain)}")
        axes.set_xlabel("position in the answer, and tokens measured there")
        axes.legend(loc="upper right")
        return figure


def acceptance_by_version(points: Sequence[VersionPoint], domain: str = "") -> Figure:
    """Measured acceptance of each version with its interval; those that became champion are filled."""
    with _figure() as figure:
        axes = figure.subplots()
        ordered = sorted(points, key=lambda point: point.version)
        for point in ordered:
            low = point.acceptance_rate if point.low is None else point.low
            high = point.acceptance_rate if point.high is None else point.high
            axes.vlines(
                point.version, low, high, color=CANDIDATE if point.promoted else CHAMPION, linewidth=2
            )
        for promoted, color, name in ((True, CANDIDATE, "promoted"), (False, CHAMPION, "not promoted")):
            shown = [point for point in ordered if point.promoted is promoted]
            axes.scatter(
                [point.version for point in shown],
                [point.acceptance_rate for point in shown],
                s=45,
                zorder=3,
                edgecolors=color,
                facecolors=color if promoted else "white",
                label=name,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if ordered:
            axes.set_xlim(ordered[0].version - 1, ordered[-1].version + 1)
        _rates(axes, f"Acceptance by version{_of(domain)}")
        axes.set_xlabel("version (each measured on its own round's held-out prompts)")
        axes.legend(loc="lower right")
        return figure


def training_curves(
    loss: Mapping[int, float], validation_acceptance: Mapping[int, float], best_step: int | None = None
) -> Figure:
    """Loss (left) and validation acceptance (right) by optimiser step, with the step that was kept."""
    with _figure(width=9.0) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(list(loss), list(loss.values()), color=LOSS, linewidth=1.4)
        left.set_title("Training loss")
        right.plot(
            list(validation_acceptance), list(validation_acceptance.values()), marker="o", color=CANDIDATE
        )
        _rates(right, "Validation acceptance")
        for axes in (left, right):
            axes.set_xlabel("optimiser step")
            if best_step is not None:
                axes.axvline(best_step, color=CHAMPION, linestyle="--", label=f"kept: step {best_step}")
        if best_step is not None:
            right.legend(loc="lower right")
        return figure


@contextmanager
def _figure(width: float = 7.0) -> Iterator[Figure]:
    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(width, 4.0), dpi=140, layout="constrained")


def _rates(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_ylabel("acceptance rate")
    axes.set_ylim(0.0, 1.0)


def _named(name: str, report: MeasureReport) -> str:
    rate = report.acceptance_rate
    if rate is None:
        return f"{name}: nothing measured"
    interval = report.interval()
    return f"{name}: {rate:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _of(domain: str) -> str:
    return f": {domain}" if domain else ""


def _span(score: PositionScore) -> str:
    return str(score.first) if score.first == score.last else f"{score.first}-{score.last}"


def _count(tokens: int) -> str:
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)
