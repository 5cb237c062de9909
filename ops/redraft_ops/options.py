"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Domain = Annotated[str | None, typer.Option(help="Domain; default: the default domain of the settings.")]
Domains = Annotated[list[str] | None, typer.Option("--domain", help="Only these domains (repeatable).")]
Url = Annotated[
    str | None, typer.Option(help="Address of the serving worker; default: host and port of the settings.")
]
