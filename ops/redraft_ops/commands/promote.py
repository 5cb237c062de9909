"""`redraft promote`: make a version the champion by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json


def promote(
    version: Annotated[int, typer.Argument(help="Version of the domain's registered model.", min=1)],
    domain: Domain = None,
    json: AsJson = False,
) -> None:
    """Make a version the champion, whatever its gate or its canary says.

    The champion's own number ends the canary that runs beside it. Workers follow within seconds.
    """
    from redraft_serving.actions import Actions

    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    settings = load_settings()
    name = domain or settings.default_domain
    with open_stack(settings) as stack:
        moved = Actions(stack.registry(), stack.announce).promote(name, version)
    if json:
        emit_json({"domain": name, "from": moved.left, "to": moved.now})
        return
    if moved.left == moved.now:
        typer.echo(f"domain {name}: version {moved.now} stays champion, the canary beside it has ended")
        return
    left = "base draft" if moved.left is None else f"version {moved.left}"
    typer.echo(f"domain {name}: {left} -> version {moved.now}")
