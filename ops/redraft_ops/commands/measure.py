"""`redraft measure`: measured acceptance of drafts on held-out continuations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft_ops.options import AsJson, Domain
from redraft_ops.output import emit_json, emit_table

if TYPE_CHECKING:
    from redraft_ops.measuring import Measured
    from redraft_ops.stack import Stack


def measure(
    domain: Domain = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(help="base, champion or a version number (repeatable); default: base, champion."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure the acceptance of drafts on the domain's held-out samples.

    The first draft is what the others are compared with.
    """
    from redraft_ops.measuring import measure_versions
    from redraft_ops.processes import sigterm_as_exit
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    settings = load_settings()
    name = domain or settings.default_domain
    with sigterm_as_exit(), open_stack(settings) as stack:
        stack.require_redis()
        versions = _versions(stack, name, draft)
        measured = measure_versions(stack, name, versions)
    rows = [_row(name, one, measured[0], settings.gate.confidence) for one in measured]
    if json:
        emit_json(rows)
        return
    columns = (
        "version",
        "acceptance_rate",
        "ci_low",
        "ci_high",
        "gain",
        "gain_ci_low",
        "heldout_requests",
        "heldout_tokens",
        "uncovered_tokens",
    )
    emit_table(f"Measured acceptance, domain {name}", columns, ([row[c] for c in columns] for row in rows))


def _versions(stack: Stack, domain: str, wanted: list[str] | None) -> list[int | None]:
    from redraft_ops.errors import UsageError

    champion = stack.registry().champion(domain)
    if not wanted:
        return [None, champion.version] if champion else [None]
    versions: list[int | None] = []
    for word in wanted:
        if word == "base" or (word == "champion" and champion is None):
            versions.append(None)
        elif word == "champion" and champion is not None:
            versions.append(champion.version)
        elif word.isdigit():
            versions.append(int(word))
        else:
            raise UsageError(f"--draft {word} is neither base, champion nor a version number")
    return versions


def _row(domain: str, one: Measured, first: Measured, confidence: float) -> dict[str, Any]:
    from redraft_ops.measuring import paired_gain
    from redraft_ops.output import finite

    report = one.report
    rate = report.interval()
    gain = paired_gain(first.report, report, confidence) if one is not first else None
    return {
        "domain": domain,
        "version": "base" if one.version is None else one.version,
        "acceptance_rate": report.acceptance_rate,
        "ci_low": finite(rate.low),
        "ci_high": finite(rate.high),
        "gain": finite(gain.estimate) if gain else None,
        "gain_ci_low": finite(gain.low) if gain else None,
        "heldout_requests": report.requests,
        "heldout_tokens": report.tokens,
        "uncovered_tokens": report.uncovered_tokens,
        "skipped": report.skipped,
    }
