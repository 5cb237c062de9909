"""`redraft prune`: delete old versions with their files."""

from __future__ import annotations

from typing import Annotated

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json


def prune(
    keep: Annotated[int, typer.Option(help="Newest versions that stay.", min=1)],
    domain: Domain = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    json: AsJson = False,
) -> None:
    """Delete all versions but the newest and those that are needed, with their files.

    Versions with an alias, what a rollback leads to, running canaries and unsettled ones always stay.
    """
    from redraft_models.registry import Registry

    from redraft_ops.settings import load_settings
    from redraft_ops.stack import tracking

    settings = load_settings()
    name = domain or settings.default_domain
    uri, artifacts = tracking(settings)
    registry = Registry(uri, artifact_root=artifacts)
    if dry_run:
        numbers, freed = tuple(registry.prunable(name, keep)), None
    else:
        done = registry.prune(name, keep)
        numbers, freed = done.versions, done.bytes_freed
    if json:
        emit_json({"domain": name, "versions": list(numbers), "bytes_freed": freed, "dry_run": dry_run})
        return
    listed = f"version{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
    if not numbers:
        typer.echo(f"domain {name}: nothing to delete")
    elif dry_run:
        typer.echo(f"domain {name}: would delete {listed}")
    else:
        typer.echo(f"domain {name}: deleted {listed}, {(freed or 0) / 2**20:.1f} MiB of files")
