"""Pictures of a training round for MLflow: figures out, nothing shown, written or kept open.

Figures are made without pyplot, so they need no display, share no state between threads and free themselves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from redraft_models.registry_versions import VersionInfo

from redraft_trainer.reports import MeasureReport, PositionScore

CHAMPION, CANDIDATE, LOSS, GRID = "#8a8f98", "#1f6feb", "#c2410c", "#e5e7eb"
_COLORS = {"promoted": CANDIDATE, "not promoted": CHAMPION, "on trial": "#7c3aed", "rolled back": LOSS}
_ROOM = 0.05
"""Acceptance left free above and below the points over versions."""

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


Outcome = Literal["promoted", "not promoted", "on trial", "rolled back"]


@dataclass(frozen=True)
class VersionPoint:
    """One version in the picture over versions: its acceptance, the interval's ends, the champion's
    acceptance on the same held-out samples, and what became of it.
    """

    version: int
    acceptance_rate: float
    low: float | None = None
    high: float | None = None
    champion: float | None = None
    outcome: Outcome = "not promoted"


def version_points(versions: Iterable[VersionInfo]) -> list[VersionPoint]:
    """Points of the versions that were measured, from their tags."""
    measured = (info for info in versions if _rate(info.tags, "acceptance_rate") is not None)
    return [
        VersionPoint(
            info.version,
            _rate(info.tags, "acceptance_rate") or 0.0,
            low=_rate(info.tags, "acceptance_ci_low"),
            high=_rate(info.tags, "acceptance_ci_high"),
            champion=_rate(info.tags, "champion_acceptance_rate"),
            outcome=_outcome(info),
        )
        for info in measured
    ]


def _outcome(info: VersionInfo) -> Outcome:
    if "rollback_reason" in info.tags:
        return "rolled back"
    if info.canary_running:
        return "on trial"
    return "promoted" if "promoted_at" in info.tags else "not promoted"


def _rate(tags: Mapping[str, str], name: str) -> float | None:
    try:
        return float(tags[name])
    except (KeyError, ValueError):
        return None


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
    """Measured acceptance of each version with its interval, beside the champion's in the same round; those
    that became champion are filled.
    """
    with _figure() as figure:
        axes = figure.subplots()
        ordered = sorted(points, key=lambda point: point.version)
        for point in ordered:
            low = point.acceptance_rate if point.low is None else point.low
            high = point.acceptance_rate if point.high is None else point.high
            axes.vlines(point.version, low, high, color=_COLORS[point.outcome], linewidth=2)
        beside = {point.version: point.champion for point in ordered if point.champion is not None}
        if beside:
            label = "champion of that round"
            places = (list(beside), list(beside.values()))
            axes.scatter(*places, marker="_", s=120, color="black", zorder=2, label=label)
        for outcome, color in _COLORS.items():
            shown = [point for point in ordered if point.outcome == outcome]
            axes.scatter(
                [point.version for point in shown],
                [point.acceptance_rate for point in shown],
                s=45,
                zorder=3,
                edgecolors=color,
                facecolors=color if outcome in ("promoted", "rolled back") else "white",
                label=outcome,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if ordered:
            axes.set_xlim(ordered[0].version - 0.5, ordered[-1].version + 0.5)
        _rates(axes, f"Acceptance by version{_of(domain)}")
        if ordered:
            axes.set_ylim(*_span_of(ordered))
        axes.set_xlabel("version; each round has its own held-out samples, so compare point and dash")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def _span_of(points: Sequence[VersionPoint]) -> tuple[float, float]:
    """The part of the axis that the points need: rounds differ by a few hundredths."""
    values = [
        value
        for point in points
        for value in (point.acceptance_rate, point.low, point.high, point.champion)
        if value is not None
    ]
    return max(0.0, min(values) - _ROOM), min(1.0, max(values) + _ROOM)


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
