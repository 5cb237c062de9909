"""`redraft status`: where each domain stands."""

from __future__ import annotations

from redraft_ops.options import AsJson, Domains, Url
from redraft_ops.output import emit_json, emit_table, note


def status(domain: Domains = None, url: Url = None, json: AsJson = False) -> None:
    """Per domain: the draft that serves, its live acceptance, the stream, and the last training round."""
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack
    from redraft_ops.status import domain_rows

    settings = load_settings()
    with open_stack(settings) as stack:
        rows, remarks = domain_rows(stack, domain, url)
    if json:
        emit_json(rows)
    else:
        columns = [name for name in rows[0] if name != "last_round"] if rows else ["domain"]
        table = ([row[name] for name in columns] + [_words(row["last_round"])] for row in rows)
        emit_table("Domains", [*columns, "last round"], table)
    for remark in remarks:
        note(remark)


def _words(last: dict[str, object] | None) -> str:
    return "none" if last is None else f"version {last['version']}: {last['decision']}"
