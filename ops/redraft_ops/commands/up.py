"""`redraft up`: the whole deployment on this machine."""

from __future__ import annotations

from typing import Annotated

import typer


def up(
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave a part out (repeatable): serve, worker, beat or mlflow."),
    ] = None,
) -> None:
    """Run serving, training, schedule, MLflow's pages and, unless given, Redis; restart what dies.

    SIGTERM or Ctrl-C stops everything in order, requests first; a second Ctrl-C hurries.
    """
    from redraft_ops.errors import UsageError
    from redraft_ops.logs import configure_logging
    from redraft_ops.settings import load_settings
    from redraft_ops.up.plan import PARTS
    from redraft_ops.up.run import run_deployment

    optional = PARTS[:-1]
    for name in without or ():
        if name not in optional:
            raise UsageError(f"--without {name} is none of {', '.join(optional)}")
    settings = load_settings()
    configure_logging()
    run_deployment(settings, frozenset(without or ()))
