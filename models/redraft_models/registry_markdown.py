"""Pieces of Markdown for MLflow's UI, which draws tables without lines or padding."""

import math
from collections.abc import Iterable, Sequence

from redraft_models.registry_names import model_name

MOST_CHARACTERS = 5000
"""What MLflow's databases hold of a description."""

_MOST_REASON = 1500
_GAP = "&emsp;"
"""Keeps a cell apart from the one to its right."""


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table between its title and an empty line; empty without rows."""
    lines = [_line([_cell(value) for value in row]) for row in rows]
    if not lines:
        return ""
    return "\n".join([f"**{title}**\n", _line(header), "|" + "---|" * len(header), *lines, "\n&nbsp;"])


def facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values under a title; rows without a value are left out, as is a title without rows."""
    lines = [f"- {name}: {cut(value)}" for name, value in rows if value]
    return "\n".join([f"**{title}**\n", *lines]) if lines else ""


def moment(iso: str | None) -> str:
    """A time of a tag, to the minute."""
    return f"{iso[:16].replace('T', ' ')} UTC" if iso else ""


def number(value: str | None, signed: bool = False) -> str:
    """A number with four decimals; text that is none stays as it is, None is empty."""
    parsed = parse(value)
    if parsed is None:
        return value or ""
    return f"{parsed:+.4f}" if signed else f"{parsed:.4f}"


def interval(value: str | None, low: str | None, high: str | None) -> str:
    """A difference with the ends of its interval, as far as they are known."""
    if not value:
        return ""
    ends = f" ({number(low, True)} to {number(high, True)})" if low and high else ""
    return number(value, True) + ends


def percentage(value: str | None, low: str | None, high: str | None) -> str:
    """A relative difference with the ends of its interval, in percent."""
    middle, first, last = (parse(one) for one in (value, low, high))
    if middle is None:
        return ""
    ends = f" ({first:+.1%} to {last:+.1%})" if first is not None and last is not None else ""
    return f"{middle:+.1%}{ends}"


def version_link(domain: str, version: str | int) -> str:
    """A version's number, leading to its page."""
    return f"[version {version}](#/models/{model_name(domain)}/versions/{version})"


def named(domain: str, version: str | None) -> str:
    """A version as tags name it: a number or "base"."""
    if version == "base":
        return "the base draft (no adapter)"
    return version_link(domain, version) if version and version.isdigit() else version or ""


def code(value: str | None) -> str:
    """A value in a fixed-width font."""
    return f"`{value}`" if value else ""


def cut(text: str) -> str:
    """A sentence of bounded length."""
    return text if len(text) <= _MOST_REASON else text[:_MOST_REASON] + " …"


def parse(value: str | None) -> float | None:
    """A finite number, or None."""
    try:
        parsed = float(value or "")
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) else None


def _line(cells: Sequence[str]) -> str:
    return f"| {f'{_GAP} | '.join(cells)} |"


def _cell(value: str) -> str:
    return cut(value).replace("|", "\\|").replace("\n", " ")
