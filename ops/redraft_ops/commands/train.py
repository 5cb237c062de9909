"""`redraft train`: one training round, here or in a running worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json, emit_table, note

if TYPE_CHECKING:
    from redraft_ops.stack import Stack

KEYS = (
    "decision",
    "reason",
    "version",
    "acceptance_rate",
    "champion_acceptance_rate",
    "gain",
    "gain_ci_low",
    "heldout_requests",
    "heldout_tokens",
)


def train(
    domain: Domain = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also with fewer new tokens than min_new_tokens.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Ask a running `redraft worker` for it instead of training here.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="With --now: print the round's id and leave it to the worker.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Run one training round of a domain, in this process or by --now in a worker, under the same lock."""
    from redraft_ops.errors import UsageError
    from redraft_ops.logs import configure_logging
    from redraft_ops.processes import sigterm_as_exit
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    if no_wait and not now:
        raise UsageError("--no-wait goes with --now; without it the round runs in this process")
    settings = load_settings()
    name = domain or settings.default_domain
    configure_logging("WARNING")
    with sigterm_as_exit(), open_stack(settings) as stack:
        stack.require_redis()
        if now and no_wait:
            _leave(stack, name, force, json)
            return
        result = _asked(stack, name, force) if now else _round(stack, name, force)
    shown = {**({"round_id": result["round_id"]} if now else {}), **{key: result.get(key) for key in KEYS}}
    if json:
        emit_json(shown)
        return
    emit_table(f"Training round, domain {name}", ("", ""), shown.items())


def _leave(stack: Stack, domain: str, force: bool, as_json: bool) -> None:
    """Ask for a round and say its id."""
    from redraft_ops.asking import ask

    _warn_without_worker(stack)
    _, round_id = ask(stack, domain, force)
    if as_json:
        emit_json({"round_id": round_id})
    else:
        typer.echo(round_id)


def _asked(stack: Stack, domain: str, force: bool) -> dict[str, Any]:
    """A round of a running worker's; Ctrl-C leaves it running."""
    from redraft_ops.asking import ask, follow
    from redraft_ops.progress import Phases

    _warn_without_worker(stack)
    app, round_id = ask(stack, domain, force)
    note(f"round {round_id}; Ctrl-C stops looking at it, not the round")
    with Phases() as phases, phases.phase(f"training round of domain {domain}") as bar:
        return {**follow(app, round_id, bar.show), "round_id": round_id}


def _warn_without_worker(stack: Stack) -> None:
    from redraft_ops.asking import has_worker

    if not has_worker(stack):
        note("no worker shows a sign of life; the round waits until `redraft worker` is started")


def _round(stack: Stack, domain: str, force: bool) -> dict[str, Any]:
    """One round, with a bar on a terminal."""
    from redraft_ops.launch import run_round_here
    from redraft_ops.progress import Phases

    with Phases() as phases, phases.phase(f"training round of domain {domain}") as bar:
        return run_round_here(stack, domain, force, bar.show)
