"""`redraft bench`: configurations side by side in one interleaved run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json, emit_table, note

Opt = typer.Option
Names = list[str] | None
PromptFile = Annotated[Path | None, Opt(help="JSONL: `prompt`, maybe `domain`. Default: built-in ones.")]
Requests = Annotated[int, Opt(min=1, help="Requests per configuration, each with a prompt of its own.")]
MaxTokens = Annotated[int, Opt(min=1, help="Most tokens of an answer.")]
Clients = Annotated[str, Opt(help="Requests that run at the same time, e.g. 1,8.")]
Compare = Annotated[
    str, Opt(help="off, auto, k<N> (each also with +capture), generate, assisted, continuous_batching.")
]
Peers = Annotated[Names, Opt(help="NAME=URL of an OpenAI-compatible server (repeatable).")]
Rate = Annotated[float | None, Opt(min=1e-3, help="Open loop: requests per second, Poisson arrivals.")]
Temperature = Annotated[float, Opt(min=0, max=100, help="0 is greedy; answers are compared only then.")]
WarmUp = Annotated[int, Opt(min=0, help="Requests per configuration that are not counted.")]
BlockSize = Annotated[int | None, Opt(min=1, help="Requests before the next configuration's turn.")]
GoalTtft = Annotated[float | None, Opt(min=0, help="Latency goal: time to the first token.")]
GoalItl = Annotated[float | None, Opt(min=0, help="Latency goal: mean time per further token.")]
MaxSeconds = Annotated[float, Opt(min=1, help="Stop early after so long, and say so.")]
Threads = Annotated[int | None, Opt(min=1, help="Threads of each side; default: torch's own choice.")]
PrefixCache = Annotated[int, Opt(min=0, help="Prefix cache; 0: none, as configurations share prompts.")]
DTypes = Annotated[str | None, Opt(help="auto, float32, bfloat16 or float16; several with commas.")]
Acceptance = Annotated[str | None, Opt(help="Time chosen acceptances, e.g. 0.4,0.6,0.8, in process.")]
K = Annotated[int, Opt("--k", min=1, help="Tokens that assisted generation proposes per round.")]
Replay = Annotated[bool, Opt("--replay", help="Prompts and lengths from the domain's stream.")]
IgnoreEos = Annotated[bool, Opt("--ignore-eos", help="Answers have --max-tokens, whatever they say.")]
Check = Annotated[bool, Opt("--check-equal", help="Compare greedy text with speculation on and off.")]
Profile = Annotated[bool, Opt("--profile", help="Where the time of a round goes, in process.")]
During = Annotated[bool, Opt("--during-training", help="Time per token beside a training round.")]
Out = Annotated[Path, Opt(help="Folder for bench.md, bench.json, bench.png and logs.")]
Seed = Annotated[int, Opt(help="Of prompts' order, arrivals and sampling.")]
Text = Annotated[str | None, Opt(help="Default: that of the settings.")]
DEFAULT_COMPARE, DEFAULT_OUT = "off,auto,k3", Path("redraft-bench")


def bench(
    prompts: PromptFile = None,
    requests: Requests = 24,
    max_tokens: MaxTokens = 64,
    clients: Clients = "1",
    compare: Compare = DEFAULT_COMPARE,
    peer: Peers = None,
    rate: Rate = None,
    temperature: Temperature = 0.0,
    check_equal: Check = False,
    replay: Replay = False,
    acceptance: Acceptance = None,
    profile: Profile = False,
    during_training: During = False,
    domain: Domain = None,
    target: Text = None,
    draft: Text = None,
    dtype: DTypes = None,
    k: K = 3,
    warm_up: WarmUp = 2,
    block: BlockSize = None,
    goal_ttft_ms: GoalTtft = None,
    goal_itl_ms: GoalItl = None,
    ignore_eos: IgnoreEos = False,
    prefix_cache_mb: PrefixCache = 0,
    threads: Threads = None,
    max_seconds: MaxSeconds = 1800.0,
    seed: Seed = 0,
    out: Out = DEFAULT_OUT,
    json: AsJson = False,
) -> None:
    """Compare configurations under load: speculation off, fixed, automatic; transformers' own decoding on the
    same pair and prompts; other servers; our own beside a training round. Exit 1 where --check-equal finds a
    difference.
    """
    from redraft_ops.bench.dispatch import Source, mode_of, rates_of, run_mode
    from redraft_ops.bench.plan import BenchPlan, Goal, configurations, dtypes_of, levels_of
    from redraft_ops.processes import sigterm_as_exit
    from redraft_ops.settings import load_settings

    mode = mode_of(check_equal, acceptance, profile, during_training)
    rates = rates_of(acceptance) if acceptance else ()
    given = {"target": target, "draft": draft}
    settings = load_settings({"models": {name: value for name, value in given.items() if value}})
    plan = BenchPlan(
        requests, max_tokens, levels_of(clients, rate), configurations(compare, peer or ()),
        dtypes_of(dtype or settings.models.dtype), k, rate, temperature, seed, ignore_eos, warm_up, block,
        max_seconds, Goal(goal_ttft_ms, goal_itl_ms), prefix_cache_mb, threads,
    )  # fmt: skip
    source, folder = Source(prompts, replay, domain or settings.default_domain), out.expanduser().absolute()
    with sigterm_as_exit():
        document = run_mode(mode, settings, plan, source, rates, folder)
    _show(document, folder, json)


def _show(document: dict[str, Any], out: Path, as_json: bool) -> None:
    from redraft_ops.bench.report import narrow, write_report

    mode = document["mode"]
    rows = document["checks" if mode == "check-equal" else "runs"]
    report = write_report(document, mode, rows, out)
    if as_json:
        emit_json(document)
    else:
        emit_table(f"redraft bench, {mode}", *narrow(mode, rows))
    for line in (*document["notes"], f"report: {report}"):
        note(line)
    if document.get("equal") is False:
        note("redraft: greedy text with speculation differs from that without")
        raise typer.Exit(1)
