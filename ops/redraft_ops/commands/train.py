"""`redraft train`: one training round, here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json, emit_table

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
    json: AsJson = False,
) -> None:
    """Run one training round of a domain in this process, with the same lock as the workers'."""
    from redraft_ops.logs import configure_logging
    from redraft_ops.processes import sigterm_as_exit
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    settings = load_settings()
    name = domain or settings.default_domain
    configure_logging("WARNING")
    with sigterm_as_exit(), open_stack(settings) as stack:
        stack.require_redis()
        result = _round(stack, name, force)
    if json:
        emit_json({key: result.get(key) for key in KEYS})
        return
    emit_table(f"Training round, domain {name}", ("", ""), ((key, result.get(key)) for key in KEYS))


def _round(stack: Stack, domain: str, force: bool) -> dict[str, Any]:
    """One round, with a bar on a terminal."""
    from redraft_ops.launch import run_round_here
    from redraft_ops.progress import Phases

    with Phases() as phases, phases.phase(f"training round of domain {domain}") as bar:
        return run_round_here(stack, domain, force, bar.show)
