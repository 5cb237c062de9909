"""Decoding at batch 1: redraft's engine beside transformers' `generate` and assisted generation.

The same pair, K, dtype and prompts, interleaved prompt by prompt in one run, so that a machine that slows
down slows all of them. Run: `python -m redraft_ops.bench.assisted --prompts 12 --max-tokens 64 --k 3`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from redraft_ops.output import emit_json, emit_table

COLUMNS = ("name", "tokens_per_second", "ratio_to_assisted", "acceptance_rate", "equal")


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts, each answered once by every runner.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    k: Annotated[int, typer.Option(min=1, help="Tokens proposed in a round.")] = 3,
    dtype: Annotated[str, typer.Option(help="float32 | bfloat16")] = "float32",
    draft: Annotated[str | None, typer.Option(help="Draft; default: that of the settings.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Compare decoding at batch 1: medians over the prompts, and of the ratios prompt by prompt."""
    from redraft_models.loading import load_pair

    from redraft_ops.bench.runners import EngineRunner, generate_runner
    from redraft_ops.settings import load_settings

    settings = load_settings({"models": {"dtype": dtype, **({"draft": draft} if draft else {})}})
    pair = load_pair(settings.models, settings.cache_dir)
    engines = {"off": EngineRunner(pair, 0, max_tokens), f"k{k}": EngineRunner(pair, k, max_tokens)}
    runners: dict[str, Any] = {
        **engines,
        "generate": generate_runner(pair, max_tokens, 0),
        "assisted": generate_runner(pair, max_tokens, k),
    }
    timed = run_interleaved(runners, _prompt_ids(pair, prompts))
    rows = [_row(name, timed, engines.get(name)) for name in runners]
    for engine in engines.values():
        engine.close()
    if json:
        emit_json({"runs": rows, "dtype": dtype, "k": k, "max_tokens": max_tokens, "prompts": prompts})
    else:
        title = f"Batch 1, {dtype}, K = {k}, {prompts} prompts of {max_tokens} tokens"
        emit_table(title, COLUMNS, ([row[c] for c in COLUMNS] for row in rows))


def run_interleaved(runners: dict[str, Any], prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Answers per runner, in the order of the prompts; the first prompt warms all of them up, uncounted."""
    from redraft_ops.progress import Phases

    timed: dict[str, list[Any]] = {name: [] for name in runners}
    for runner in runners.values():
        runner(prompts[0])
    with Phases() as phases, phases.phase("bench", len(prompts) - 1) as bar:
        for turn, prompt in enumerate(prompts[1:]):
            names = list(runners)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                timed[name].append(runners[name](prompt))
            bar.advance()
    return timed


def _row(name: str, timed: dict[str, Any], engine: Any) -> dict[str, Any]:
    own, other = timed[name], timed["assisted"]
    return {
        "name": name,
        "tokens_per_second": statistics.median(answer.tokens_per_second for answer in own),
        "ratio_to_assisted": statistics.median(
            a.tokens_per_second / b.tokens_per_second for a, b in zip(own, other, strict=True)
        ),
        "acceptance_rate": engine.acceptance_rate if engine else None,
        "equal": all(a.ids == b.ids for a, b in zip(own, timed["generate"], strict=True)),
    }


def _prompt_ids(pair: Any, count: int) -> list[tuple[int, ...]]:
    from redraft_ops.demo.prompts import docstring_prompts
    from redraft_ops.healing.answers import chat_ids

    texts = docstring_prompts(seed=1, characters=(120, 700))[: count + 1]
    return [chat_ids(pair.tokenizer, text) for text in texts]


if __name__ == "__main__":
    typer.run(main)
