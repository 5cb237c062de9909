"""What a bench leaves behind: bench.json, bench.md, bench.png."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redraft_ops.output import shown

COLUMNS: dict[str, Sequence[str]] = {
    "load": (
        "name", "clients", "dtype", "tokens_per_second", "ratio_to_off", "ttft_ms_p50", "ttft_ms_p95",
        "itl_ms_p50", "itl_ms_p99", "chunk_gap_ms_p99", "acceptance_rate", "within_goal", "failed", "equal",
    ),
    "acceptance": (
        "name", "acceptance", "clients", "dtype", "tokens_per_second", "ratio_to_off", "ratio_to_off_p25",
        "ratio_to_off_p75", "acceptance_rate", "mean_acceptance_length", "itl_ms_p50", "equal",
    ),
    "profile": (
        "name", "clients", "dtype", "rounds", "tokens_per_round", "round_ms", "verify_share", "draft_share",
        "rest_share", "verify_ms", "head_ms", "floor_ms", "verify_over_floor",
    ),
    "check-equal": ("name", "clients", "dtype", "requests", "near_ties", "different", "equal"),
    "during-training": (
        "name", "training", "clients", "dtype", "ms_per_token", "time_ratio", "time_ratio_p25",
        "time_ratio_p75", "itl_ms_p50", "itl_ms_p99", "ttft_ms_p50", "training_pace", "failed",
    ),
}  # fmt: skip
WIDE = {
    "ttft_ms_p95", "chunk_gap_ms_p99", "within_goal", "failed", "ratio_to_off_p25", "ratio_to_off_p75",
    "mean_acceptance_length", "rounds", "tokens_per_round", "verify_ms", "head_ms", "floor_ms",
    "time_ratio_p25", "time_ratio_p75",
}  # fmt: skip
"""Columns of the report alone."""
TITLES = {
    "tokens_per_second": "tokens/s",
    "ratio_to_off": "x off",
    "ratio_to_off_p25": "x off, p25",
    "ratio_to_off_p75": "x off, p75",
    "ttft_ms_p50": "ttft p50 (ms)",
    "ttft_ms_p95": "p95",
    "itl_ms_p50": "itl p50 (ms)",
    "itl_ms_p99": "p99",
    "chunk_gap_ms_p99": "chunk gap p99",
    "acceptance_rate": "accepted/tested",
    "mean_acceptance_length": "tokens/round",
    "within_goal": "within goal",
    "tokens_per_round": "tokens/round",
    "round_ms": "round (ms)",
    "verify_share": "verify",
    "draft_share": "draft",
    "rest_share": "rest",
    "verify_ms": "verify (ms)",
    "head_ms": "head (ms)",
    "floor_ms": "floor (ms)",
    "verify_over_floor": "verify/floor",
    "near_ties": "near ties",
    "ms_per_token": "ms per token",
    "time_ratio": "x alone",
    "time_ratio_p25": "x alone, p25",
    "time_ratio_p75": "x alone, p75",
    "training_pace": "training's pace",
}
MEANINGS = {
    "load": """
- *tokens/s*: median over blocks of tokens by wall time, prompts included. *x off*:
  median over blocks of the ratio on the same prompts.
- *ttft*: from when a request was due to its first token. *itl*: time per token after the first chunk; a chunk
  of several tokens counts as so many. *chunk gap*: the pauses between chunks that a reader sees.
- *equal*: the greedy answers are those of `reference` in bench.json, near ties of the target's two best
  tokens apart.
""",
    "acceptance": """
- The real draft runs at its full cost; then its tokens are replaced, so that each is right with the
  probability in *acceptance*. *accepted/tested* is what came of it. In process, without HTTP.
""",
    "profile": """
- Shares are of a round: *verify* the target's pass, *draft* the draft's, *rest* everything else. *head* is
  the target's last product alone, by torch's own product: a part of *verify*.
- *floor*: bytes that a step has to read over the bandwidth measured in this run.
""",
    "during-training": """
- *ms per token*: wall time by tokens emitted to all clients, prompts included, the median over blocks.
  *x alone*: median over blocks of the same prompts' time beside a training by that without. *training's
  pace*: its steps per second meanwhile by those it makes while nothing is served.
""",
    "check-equal": """
- `off` is compared with transformers' `generate`, everything else with `off`, with as many clients.
  *near ties*: forks where the target's two best logits are closer than rounding.
""",
}


def write_report(
    document: Mapping[str, Any], mode: str, rows: Sequence[Mapping[str, Any]], out: Path
) -> Path:
    """Write the document, its table and, where there are speeds, a picture; returns the Markdown's path."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    picture = mode in ("load", "acceptance") and bool(rows)
    if picture:
        from redraft_ops.bench.picture import speeds

        speeds(rows).savefig(out / "bench.png")
    path = out / "bench.md"
    path.write_text(markdown(document, mode, rows, picture), encoding="utf-8")
    return path


def markdown(document: Mapping[str, Any], mode: str, rows: Sequence[Mapping[str, Any]], picture: bool) -> str:
    """The table with what it was measured on."""
    columns = COLUMNS[mode]
    lines = [f"| {' | '.join(titles(columns))} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(_cell(row.get(column)) for column in columns)} |" for row in rows]
    notes = [f"- {note}" for note in document["notes"]]
    parts = [
        "# redraft bench",
        f"    {document['command']}",
        "\n".join(lines),
        "![tokens per second](bench.png)" if picture else "",
        MEANINGS[mode].strip(),
        _machine(document),
        "\n".join(["Notes", "", *notes]) if notes else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def titles(columns: Sequence[str]) -> list[str]:
    """Heads of columns."""
    return [TITLES.get(column, column) for column in columns]


def narrow(mode: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows for a terminal, which has no room for every column."""
    columns = [column for column in COLUMNS[mode] if column not in WIDE]
    return titles(columns), [[_cell(row.get(column)) for column in columns] for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
    return shown(value)


def _machine(document: Mapping[str, Any]) -> str:
    about, bandwidth = document["machine"], document.get("memory_bandwidth_gb_per_second")
    sentences = [
        f"Target {document['target']}, draft {document['draft']}.",
        f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB,",
        f"GPU: {about['gpu'] or 'none'};",
        f"Python {about['python']}, torch {about['torch']} ({about['torch_threads']} threads),",
        f"transformers {about['transformers']}.",
        f"Memory was read with {bandwidth:.1f} GB/s." if bandwidth else "",
        f"The run took {document['seconds']:.0f} s.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)
