"""The demo's table, its Markdown report and its picture."""

from __future__ import annotations

import json
from pathlib import Path

from redraft_trainer.intervals import Interval

from redraft_ops.demo.numbers import LiveCounts
from redraft_ops.demo.plan import DemoPlan
from redraft_ops.demo.result import DemoResult, Side
from redraft_ops.output import finite

Row = tuple[str, str, str]
HEADER: Row = ("", "before", "after")


def rows(result: DemoResult) -> list[Row]:
    """The one table: what was found with the first draft and with the new one."""
    before, after, k = result.before, result.after, result.num_speculative_tokens
    return [
        ("draft", before.name, after.name),
        ("measured acceptance (held-out prompts)", _interval(before.measured), _interval(after.measured)),
        ("gain, paired by prompt", "", _gain(result.gain)),
        ("live acceptance (served requests)", _live(before.live), _live(after.live)),
        _row(
            "mean acceptance length", before.live.mean_acceptance_length, after.live.mean_acceptance_length, 2
        ),
        ("tokens/s, speculation off", _number(result.off.tokens_per_second, 1), ""),
        _row("tokens/s, one stream", before.speed.tokens_per_second, after.speed.tokens_per_second, 1),
        _row(
            "tokens/s, modelled", before.modelled_tokens_per_second(k), after.modelled_tokens_per_second(k), 1
        ),
        (
            f"break-even acceptance at K = {k}",
            _break_even(result.break_even_before),
            _break_even(result.break_even_after),
        ),
        (
            "longest pause of a stream at the swap",
            f"usual {1000 * result.usual_pause_seconds:.0f} ms",
            f"{1000 * result.longest_pause_seconds:.0f} ms ({result.streams_during_swap} streams)",
        ),
        ("requests failed", "", f"{len(result.failures)} of {result.requests}"),
        ("greedy text equals the target's own", "", "yes" if result.greedy_equal else "NO"),
    ]


def _row(label: str, before: float | None, after: float | None, places: int) -> Row:
    return label, _number(before, places), _number(after, places)


def write_report(result: DemoResult, plan: DemoPlan, out: Path, mlflow_command: str) -> Path:
    """Write report.md, report.png and result.json into `out`; returns the Markdown's path."""
    write_picture(result, out / "report.png")
    (out / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n")
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * 3, *rows(result))]
    text = TEXT.format(
        table="\n".join(lines),
        decision=result.decision,
        domain=plan.domain,
        prompts=plan.prompts,
        fresh=plan.fresh_prompts,
        probes=plan.probes,
        seconds=f"{result.seconds:.0f}",
        k=result.num_speculative_tokens,
        heldout=_heldout(result.before),
        command=mlflow_command,
    )
    path = out / "report.md"
    path.write_text(text)
    return path


TEXT = """# redraft demo

{table}

![acceptance and speed](report.png)

Decision of the last training round: {decision}

What the rows mean

- The domain is `{domain}`: {prompts} prompts were answered with the first draft, {fresh} fresh ones after
  the swap, each prompt once. Intervals are 95 %, clustered by request.
- *Measured acceptance*: both drafts on the same {heldout}, which no round trains on.
- *Live acceptance*: accepted / tested tokens that the served requests report themselves.
- *tokens/s, one stream*: {probes} more prompts, sent one at a time and not captured, with speculation off,
  with the first and with the new draft: the same text each time.
- *Break-even acceptance*: the a at which (1 - a^(K+1)) / (1 - a) tokens per round pay for a round's time,
  with K = {k} and the times of a round and of a plain token as measured on one stream. Below it, speculation
  is slower than plain decoding. *Modelled* is that same number of tokens, at the measured acceptance, per
  time of a round.
- *Longest pause*: the longest time between two chunks of any stream that was running while the draft was
  swapped, seen by the client.

The run took {seconds} s. To look at runs, curves, pictures and versions:

    {command}
"""


def write_picture(result: DemoResult, path: Path) -> None:
    """Acceptance before and after with intervals, and the three speeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for offset, label, colour, found in (
        (-0.12, "measured, held-out prompts", "#1f4e8c", [_bounded(s.measured) for s in _sides(result)]),
        (0.12, "live, served requests", "#d9822b", [_bounded(s.live.acceptance) for s in _sides(result)]),
    ):
        points = [(x + offset, one) for x, one in enumerate(found) if one is not None]
        centres = [one.estimate for _, one in points]
        reach = [
            [one.estimate - one.low for _, one in points],
            [one.high - one.estimate for _, one in points],
        ]
        left.errorbar(
            [x for x, _ in points], centres, yerr=reach, fmt="o", capsize=5, color=colour, label=label
        )
    left.set(title="Acceptance (95 % interval)", xlim=(-0.5, 1.5), ylim=(0, 1), ylabel="accepted / tested")
    left.set_xticks([0, 1], [f"before\n{result.before.name}", f"after\n{result.after.name}"])
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    left.grid(axis="y", alpha=0.3)
    speeds = [result.off, result.before.speed, result.after.speed]
    bars = right.bar(
        ["off", "before", "after"],
        [s.tokens_per_second or 0.0 for s in speeds],
        color=["#9aa5b1", "#1f4e8c", "#2e7d32"],
    )
    right.bar_label(bars, fmt="%.1f")
    right.margins(y=0.15)
    right.set(title="Tokens per second, one stream")
    right.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120, facecolor="white")


def _sides(result: DemoResult) -> tuple[Side, Side]:
    return result.before, result.after


def _bounded(found: Interval | None) -> Interval | None:
    """Inside [0, 1], so that the picture's axis holds it."""
    if found is None or found.estimate != found.estimate:
        return None
    return Interval(found.estimate, max(0.0, found.low), min(1.0, found.high))


def _interval(found: Interval | None) -> str:
    inside = _bounded(found)
    return "n/a" if inside is None else f"{inside.estimate:.3f} [{inside.low:.3f}, {inside.high:.3f}]"


def _live(found: LiveCounts) -> str:
    return _interval(found.acceptance)


def _number(value: float | None, places: int) -> str:
    return "n/a" if value is None else f"{value:.{places}f}"


def _break_even(value: float | None) -> str:
    return "not reachable" if value is None else f"{value:.3f}"


def _heldout(side: Side) -> str:
    return f"{side.heldout_tokens} tokens of {side.heldout_requests} held-out requests"


def _gain(found: Interval) -> str:
    if finite(found.estimate) is None or finite(found.low) is None:
        return "n/a"
    return f"{found.estimate:+.3f} (at least {found.low:+.3f})"
