"""The command line. Commands live in `redraft_ops.commands`; nothing heavy is imported before one runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from redraft_ops.commands import (
    beat,
    bench,
    config,
    demo,
    doctor,
    forget,
    init_draft,
    measure,
    promote,
    prune,
    rollback,
    serve,
    status,
    train,
    up,
    worker,
)
from redraft_ops.output import note

app = typer.Typer(
    name="redraft",
    help="Online draft distillation for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    demo.demo,
    up.up,
    serve.serve,
    worker.worker,
    beat.beat,
    train.train,
    measure.measure,
    status.status,
    promote.promote,
    rollback.rollback,
    forget.forget,
    prune.prune,
    init_draft.init_draft,
    bench.bench,
    doctor.doctor,
    config.config,
):
    app.command()(command)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"redraft {version('redraft')}")
        raise typer.Exit


@app.callback()
def _root(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Online draft distillation for speculative decoding."""


def main() -> None:
    """Run a command. Failures of ours are one sentence on standard error; exit code 2 = change something,
    1 = failed.
    """
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from redraft_ops.failures import explained

        known = explained(error)
        if known is None:
            raise
        code, sentence = known
        note(f"redraft: {sentence}")
        sys.exit(code)
