"""What a canary or a watch counted on live traffic, from a version's tags: `canary_*` and `watch_*`."""

from collections.abc import Mapping

from redraft_models.registry_markdown import interval, named, number, parse, percentage, table
from redraft_models.registry_names import CANARY, CANARY_STARTED

_TITLES = {"canary": "Canary, on live traffic", "watch": "Watch after the promotion, on live traffic"}
_OF_NO_NUMBER = ("canary_against", "watch_against", CANARY_STARTED)


def live_tables(domain: str, tags: Mapping[str, str]) -> str:
    """A table per trial: this version, the one it was compared with, and the difference."""
    parts = [_trial(domain, tags, kind) for kind in _TITLES]
    return "\n\n".join(part for part in parts if part)


def live_numbers(tags: Mapping[str, str]) -> dict[str, float]:
    """Numbers that a version got on live traffic, as metrics for the table of runs: `canary/requests`.

    The slash makes MLflow's UI draw them apart from the training's curves.
    """
    found = {
        key.replace("_", "/", 1): parse(value)
        for key, value in tags.items()
        if key.startswith(tuple(f"{kind}_" for kind in _TITLES)) and key not in _OF_NO_NUMBER
    }
    return {key: value for key, value in found.items() if value is not None}


def _trial(domain: str, tags: Mapping[str, str], kind: str) -> str:
    mine = {key.removeprefix(f"{kind}_"): value for key, value in tags.items() if key.startswith(f"{kind}_")}
    mine.pop("started_ms", None)
    title = _TITLES[kind] + (f": {tags[CANARY]}" if kind == CANARY and CANARY in tags else "")
    take = mine.pop
    against = named(domain, take("against", "")) or "the other"
    rows = [
        ("requests", take("requests", ""), take("against_requests", ""), ""),
        ("tested tokens", take("tested_tokens", ""), take("against_tested_tokens", ""), ""),
        (
            "acceptance",
            number(take("acceptance_rate", "")),
            number(take("against_acceptance_rate", "")),
            interval(*_taken(mine, "acceptance_difference")),
        ),
        (
            "seconds per emitted token",
            take("seconds_per_token", ""),
            take("against_seconds_per_token", ""),
            percentage(*_taken(mine, "slowdown")),
        ),
        *((key.replace("_", " "), value, "", "") for key, value in sorted(mine.items())),
    ]
    told = [row for row in rows if any(row[1:])]
    compared = table(title, ("", "this version", against, "difference (interval)"), told)
    return compared or (f"**{title}**" if kind == CANARY and CANARY in tags else "")


def _taken(tags: dict[str, str], name: str) -> list[str | None]:
    return [tags.pop(f"{name}{end}", None) for end in ("", "_low", "_high")]
