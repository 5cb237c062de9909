"""`redraft doctor`: can this machine run the loop, and what is missing."""

from __future__ import annotations

from dataclasses import asdict

import typer

from redraft_ops.options import AsJson
from redraft_ops.output import emit_json, emit_table, note


def doctor(json: AsJson = False) -> None:
    """Check this machine: packages, device, models, Redis, MLflow, port. Exit 1 if something is missing."""
    from redraft_ops.checks import run_checks
    from redraft_ops.settings import load_settings

    checks = run_checks(load_settings())
    if json:
        emit_json([asdict(check) for check in checks])
    else:
        emit_table(
            "Checks", ("check", "", "found"), ((c.name, "ok" if c.ok else "MISSING", c.found) for c in checks)
        )
    missing = [check for check in checks if not check.ok]
    if missing:
        note(f"redraft: {len(missing)} of {len(checks)} checks failed: {', '.join(c.name for c in missing)}")
        raise typer.Exit(1)
