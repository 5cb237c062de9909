"""`redraft rollback`: back to an earlier draft."""

from __future__ import annotations

from typing import Annotated

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json


def rollback(
    domain: Domain = None,
    to: Annotated[
        int | None,
        typer.Option(
            help="Version to go back to, 0: the base draft; default: the one before the champion.", min=0
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Move a domain's champion back; with no earlier version, to the base draft.

    Workers follow within seconds.
    """
    from redraft_serving.actions import UnknownVersion

    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    settings = load_settings()
    name = domain or settings.default_domain
    with open_stack(settings) as stack:
        registry = stack.registry()
        if to and registry.version_or_none(name, to) is None:
            raise UnknownVersion(f"The domain {name} has no version {to}.")
        left, now = registry.rollback(name, to)
        stack.announce(name, now)
    if json:
        emit_json({"domain": name, "from": left, "to": now})
        return
    typer.echo(f"domain {name}: {_named(left)} -> {_named(now)}")


def _named(version: int | None) -> str:
    return "base draft" if version is None else f"version {version}"
