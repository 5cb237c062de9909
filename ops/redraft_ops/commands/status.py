"""`redraft status`: where each domain stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft_ops.options import AsJson, Domains, Url
from redraft_ops.output import emit_json, note

if TYPE_CHECKING:
    from redraft_ops.stack import Stack

WATCH_SECONDS = 2.0


def status(
    seconds: Annotated[
        float | None, typer.Argument(help="With --watch: seconds between two looks.", min=0.2)
    ] = None,
    domain: Domains = None,
    url: Url = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    json: AsJson = False,
) -> None:
    """Per domain: the draft that serves, live acceptance, gain, time per token, stream, rounds, canary.

    Below the table, what an operator should know. docs/status.md says what each key of --json means.
    """
    from redraft_ops.errors import UsageError
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    if seconds is not None and not watch:
        raise UsageError(
            f"{seconds:g} without --watch means nothing; say `redraft status --watch {seconds:g}`"
        )
    if watch and json:
        raise UsageError("--watch is for people; call `redraft status --json` as often as it is needed")
    with open_stack(load_settings()) as stack:
        if watch:
            _watch(stack, domain, url, WATCH_SECONDS if seconds is None else seconds)
            return
        rows, remark = _rows(stack, domain, url)
    if json:
        emit_json(rows)
    else:
        _print(rows)
    if remark is not None:
        note(remark)


def _rows(
    stack: Stack, domains: list[str] | None, url: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    from redraft_ops.glance.gather import gather
    from redraft_ops.glance.rows import rows_of

    glance = gather(stack, domains, url)
    return rows_of(stack.settings, glance), glance.serving.remark


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from redraft_ops.glance.table import WIDTH, shown

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    console.print(shown(rows), width=min(console.width, WIDTH))


def _watch(stack: Stack, domains: list[str] | None, url: str | None, seconds: float) -> None:
    """A table that renews itself. A server that is away is told below the last one, not the end of it."""
    import time

    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from redraft_ops.failures import explained
    from redraft_ops.glance.table import shown

    last = Group()
    try:
        with Live(auto_refresh=False) as live:
            while True:
                try:
                    rows, remark = _rows(stack, domains, url)
                    last = Group(shown(rows), Text(remark or "", style="dim"))
                    live.update(last, refresh=True)
                except Exception as error:
                    known = explained(error)
                    if known is None:
                        raise
                    live.update(Group(last, Text(known[1], style="red")), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return
