"""`redraft init-draft`: cut a draft from a target and heal it on the target's own answers."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft_ops.options import AsJson
from redraft_ops.output import emit_json, emit_table

if TYPE_CHECKING:
    from redraft_models.loading import ModelPair
    from redraft_queue.records import Sample

    from redraft_ops.healing.heal import Healed
    from redraft_ops.progress import Phases


def init_draft(
    out: Annotated[Path, typer.Option(help="New folder of the draft.")],
    layers: Annotated[str, typer.Option(help="Layers of the target to keep, rising, e.g. 0,1,2,29.")],
    target: Annotated[str | None, typer.Option(help="Target; default: that of the settings.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSONL file with a `prompt` per line; default: the target invents them."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Answers to heal on.")] = 1000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 96,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = 300,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the healing adapter.")] = 64,
    head_size: Annotated[
        int, typer.Option(min=0, help="Ids that the draft's head scores, those of the answers first; 0: all.")
    ] = 8192,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak learning rate.")] = 2e-3,
    mixed_precision: Annotated[str, typer.Option(help="no | bf16 | fp16")] = "bf16",
    samples: Annotated[
        Path | None, typer.Option(help="Keep the answers in this file; where it exists, take them from it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts, answers and training.")] = 0,
    json: AsJson = False,
) -> None:
    """Cut a draft from a Llama-like target and heal it on the target's own answers.

    The draft is made of chosen layers, and shares embedding, norm and head with the target.
    """
    from redraft_models.loading import NO_DRAFT, load_pair
    from redraft_trainer.settings import TrainerSettings

    from redraft_ops.healing.heal import heal_cut
    from redraft_ops.progress import Phases
    from redraft_ops.settings import load_settings

    wanted = _layers(layers)
    _require_empty(out)
    settings = load_settings({"models": {"draft": NO_DRAFT, **({"target": target} if target else {})}})
    trainer = _checked(
        TrainerSettings,
        learning_rate=learning_rate, max_steps=steps, rank=rank, lora_alpha=float(rank), seed=seed,
        mixed_precision=mixed_precision, eval_every=max(1, steps // 10), patience=steps, validation_percent=8,
        head_size=head_size,
    )  # fmt: skip
    with Phases() as phases:
        pair = load_pair(settings.models, settings.cache_dir)
        logged = _samples(pair, phases, samples, prompts, requests, max_tokens, seed)
        made_with = {
            "command": _command(),
            "prompts": prompts.name if prompts else "invented by the target",
            "seed": seed,
        }
        with phases.phase("heal the cut", steps) as bar:
            healed = heal_cut(pair, wanted, logged, trainer, out, made_with, bar.show)
    _print(out, healed, json)


def _layers(text: str) -> list[int]:
    from redraft_ops.errors import UsageError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--layers {text} is not a list of numbers like 0,1,2,29") from error


def _require_empty(out: Path) -> None:
    from redraft_ops.errors import UsageError

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out} is not empty; name a new folder for the draft")


def _checked(model: Any, **values: Any) -> Any:
    """Settings from options; a wrong one is a usage error, in one sentence."""
    from pydantic import ValidationError

    from redraft_ops.errors import UsageError

    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(f"{name} {first['input']} is wrong: {first['msg']}") from error


def _samples(
    pair: ModelPair,
    phases: Phases,
    kept: Path | None,
    prompts: Path | None,
    requests: int,
    max_tokens: int,
    seed: int,
) -> list[Sample]:
    from redraft_ops.healing.answers import answers, file_prompts, invented_prompts
    from redraft_ops.healing.kept import read_samples, write_samples

    if kept is not None and kept.exists():
        return read_samples(kept, pair.target.fingerprint)
    if prompts is not None:
        asked = file_prompts(pair.tokenizer, prompts, requests)
    else:
        with phases.phase("the target invents prompts", requests) as bar:
            asked = invented_prompts(pair, requests, seed, bar.advance)
    with phases.phase("the target answers", len(asked)) as bar:
        made = answers(pair, asked, max_tokens, seed, bar.advance)
    if kept is not None:
        write_samples(kept, made)
    return made


def _command() -> str:
    """This command as it can be typed again, without paths of this machine's program files."""
    return shlex.join(["redraft", *sys.argv[1:]])


def _print(out: Path, healed: Healed, as_json: bool) -> None:
    row = {
        "out": str(out),
        "layers": list(healed.recipe.layers),
        "base_draft_fingerprint": healed.recipe.base_draft_fingerprint,
        **{key: value for key, value in asdict(healed).items() if key != "recipe"},
    }
    if as_json:
        emit_json(row)
    else:
        emit_table("Draft cut from the target", ("what", "value"), row.items())
