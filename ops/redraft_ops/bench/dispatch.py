"""From options to a document: prompts are read, then the mode runs."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from redraft_models.settings import ModelSettings

from redraft_ops.bench.plan import BenchPlan
from redraft_ops.bench.prompts import (
    PromptSets,
    check_lengths,
    default_prompts,
    file_prompts,
    prompt_sets,
    replayed_prompts,
)
from redraft_ops.errors import UsageError
from redraft_ops.progress import Phases
from redraft_ops.settings import Settings

Mode = Literal["load", "acceptance", "profile", "check-equal", "during-training"]


@dataclass(frozen=True)
class Source:
    """Where prompts come from."""

    file: Path | None
    replay: bool
    domain: str


def mode_of(check_equal: bool, acceptance: str | None, profile: bool, during_training: bool = False) -> Mode:
    """Which of the modes is asked for. Raises UsageError for more than one."""
    asked: list[Mode] = []
    asked += ["check-equal"] if check_equal else []
    asked += ["acceptance"] if acceptance else []
    asked += ["profile"] if profile else []
    asked += ["during-training"] if during_training else []
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} are two benches; give one of them")
    return asked[0] if asked else "load"


def rates_of(text: str) -> tuple[float, ...]:
    """`0.4,0.6` as acceptances. Raises UsageError."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise UsageError(f"--acceptance {text} is not a list of numbers from 0 to 1 like 0.4,0.6")
    return tuple(dict.fromkeys(rates))


def run_mode(
    mode: Mode, settings: Settings, plan: BenchPlan, source: Source, rates: tuple[float, ...], out: Path
) -> dict[str, Any]:
    """The document of a run. Heavy imports are here, behind the checks of the options."""
    from redraft_models.reading import read_tokenizer
    from redraft_models.sources import resolve_source

    loaded = mode in ("load", "during-training")
    if not loaded and plan.temperature > 0:
        raise UsageError(f"--{mode} compares or replays greedy answers; leave --temperature at 0")
    if not loaded and plan.rate is not None:
        raise UsageError(f"--rate is a load over HTTP, and --{mode} runs in process; leave one out")
    if mode == "during-training" and any(one.kind != "engine" for one in plan.compare):
        raise UsageError("--during-training measures our own worker; compare off, auto or k<N> alone")
    settings = settings.model_copy(update={"models": absolute(settings.models)})
    plan = replace(plan, dtypes=measured(plan.dtypes, settings.models.device))
    with Phases() as phases:
        with phases.phase("read the prompts"):
            path = resolve_source(settings.models.target, settings.cache_dir)
            tokenizer = read_tokenizer(path, settings.models.target)
            sets = _prompts(settings, plan, source, tokenizer)
        document = _run(mode, settings, plan, sets, tokenizer, rates, out, phases)
    return {"command": shlex.join(["redraft", *sys.argv[1:]]), "mode": mode, **document}


def measured(dtypes: tuple[str, ...], device: str) -> tuple[str, ...]:
    """With "auto" as the dtype that it means on this machine, so that every side has the same."""
    from redraft_models.dtypes import resolve_dtype
    from redraft_models.loading import resolve_device

    found = (str(resolve_dtype(name, resolve_device(device))).removeprefix("torch.") for name in dtypes)
    return tuple(dict.fromkeys(found))


def absolute(models: ModelSettings) -> ModelSettings:
    """Folders by their full path: the processes that load them work elsewhere."""
    given = {"target": models.target, "draft": models.draft}
    paths = {name: Path(source).expanduser().absolute() for name, source in given.items()}
    return models.model_copy(update={name: str(path) for name, path in paths.items() if path.exists()})


def _run(
    mode: Mode,
    settings: Settings,
    plan: BenchPlan,
    sets: PromptSets,
    tokenizer: Any,
    rates: tuple[float, ...],
    out: Path,
    phases: Phases,
) -> dict[str, Any]:
    from redraft_ops.bench import modes
    from redraft_ops.bench.run import run_bench

    if mode == "during-training":
        from redraft_ops.bench.room import run_room

        return run_room(settings, plan, sets, tokenizer, out, phases)
    if mode == "acceptance":
        return modes.run_acceptance(settings, plan, sets, rates, phases)
    if mode == "profile":
        return modes.run_profile(settings, plan, sets, phases)
    if mode == "check-equal":
        return modes.run_check(settings, plan, sets, phases)
    return run_bench(settings, plan, sets, tokenizer, out, phases)


def _prompts(settings: Settings, plan: BenchPlan, source: Source, tokenizer: Any) -> PromptSets:
    if source.replay and source.file is not None:
        raise UsageError("--replay takes the prompts from the stream; leave --prompts out")
    if source.replay:
        found = _replayed(settings, plan, source.domain, tokenizer)
    elif source.file is not None:
        found = file_prompts(source.file, tokenizer)
    else:
        found = default_prompts(tokenizer, plan.prompts, plan.seed)
    if any(prompt.text is None for prompt in found) and any(one.kind == "peer" for one in plan.compare):
        raise UsageError(
            "--replay knows prompts as token ids, which a --peer may read otherwise; leave it out"
        )
    sets = prompt_sets(found, plan, source.domain, source.replay)
    check_lengths(sets, settings.models.max_model_len)
    return sets


def _replayed(settings: Settings, plan: BenchPlan, domain: str, tokenizer: Any) -> Any:
    from redraft_models.fingerprints import tokenizer_fingerprint

    from redraft_ops.stack import open_stack

    with open_stack(settings) as stack:
        stack.require_redis()
        return replayed_prompts(stack.stream(), domain, tokenizer_fingerprint(tokenizer), plan.prompts)
