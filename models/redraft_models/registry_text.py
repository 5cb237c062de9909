"""What a person reads in MLflow's UI of a domain's experiment and of each version, as Markdown.

A version's text is made of its tags alone, so it can be renewed at any time by anybody.
"""

import math
from collections.abc import Iterable, Mapping

from redraft_models.registry_names import (
    ADOPTED_FROM,
    APPROVED,
    CANARY,
    CANARY_STARTED,
    FAILED,
    GATE_REASON,
    OVERTAKEN,
    RUNNING,
    STATUS,
    UNDECIDED,
    model_name,
)
from redraft_models.registry_versions import VersionInfo

MOST_CHARACTERS = 5000
"""What MLflow's databases hold of a description."""

_MOST_REASON = 1500
_LIVE = ("canary_", "watch_")
"""Beginnings of tags that hold what was counted on live traffic, during a canary and after a promotion."""

_HEADLINES = {
    "candidate": "**Candidate**, not settled yet.",
    "on trial": "**On trial**: approved by the gate, it serves a share of the traffic beside the champion.",
    "promoted": "**Promoted** to champion.",
    "adopted": "**Adopted**: the domain's first draft, copied from another domain's champion.",
    "rolled back": "**Rolled back**: it was champion and was taken out of service.",
    "failed its canary": "**Not promoted**: approved by the gate, but worse than the champion when served.",
    "canary undecided": "**Not promoted**: approved by the gate, but its canary ended without a decision.",
    "overtaken": "**Not promoted**: the champion changed before its canary had ended.",
    "rejected": "**Not promoted.**",
}
_FAILED_CANARIES = {FAILED: "failed its canary", UNDECIDED: "canary undecided", OVERTAKEN: "overtaken"}


def experiment_description(domain: str) -> str:
    """Note of the domain's experiment."""
    return (
        f"Training rounds of redraft for the domain **{domain}**. Each run is one round: it distils the "
        "target into a LoRA adapter of the draft from a range of the sample stream, then measures the "
        "serving draft and the candidate on the same held-out continuations.\n\n"
        "To compare rounds, show the columns `acceptance_rate` (of the candidate), "
        "`champion_acceptance_rate`, `gain`, `gain_ci_low` and the tag `outcome`. A run's name says which "
        "version it made and what became of it; its pictures and the held-out table are under *Artifacts*. "
        f"The versions themselves: registered model `{model_name(domain)}`."
    )


def standing(tags: Mapping[str, str]) -> str:
    """What became of a version, in a word or two (the keys of `_HEADLINES`)."""
    status, canary = tags.get(STATUS), tags.get(CANARY, "")
    if "rollback_reason" in tags:
        return "rolled back"
    if status == APPROVED:
        if canary == RUNNING:
            return "on trial"
        return "adopted" if ADOPTED_FROM in tags else "promoted"
    if status == "rejected":
        return _FAILED_CANARIES.get(canary, "rejected")
    return "candidate"


def version_description(info: VersionInfo) -> str:
    """Text of a version: what became of it and why, then the evidence as tables."""
    tags = info.tags
    parts = [
        f"{_HEADLINES[standing(tags)]} {_cut(_reason(tags))}".strip(),
        _quoted("Rolled back", tags.get("rollback_reason"), tags.get("rolled_back_at")),
        _quoted("The gate said", tags.get(GATE_REASON)),
        _table("measured by the gate, on held-out continuations", _measured(tags)),
        _table("live traffic", _live(tags)),
        _table("trained on", _trained(tags)),
        _table("lineage", _lineage(info)),
    ]
    return "\n\n".join(part for part in parts if part)[:MOST_CHARACTERS]


def numbers(tags: Mapping[str, str]) -> dict[str, float]:
    """Numbers that a version got on live traffic, as metrics for the table of runs."""
    found = {key: _float(value) for key, value in tags.items() if _is_live(key)}
    return {key: value for key, value in found.items() if value is not None}


def number(value: str | None, signed: bool = False) -> str:
    """A number with four decimals; text that is none stays as it is, None is empty."""
    if not value:
        return ""
    parsed = _float(value)
    if parsed is None:
        return value
    return f"{parsed:+.4f}" if signed else f"{parsed:.4f}"


def version_link(domain: str, version: str | int) -> str:
    """A version's number, leading to its page in MLflow's UI."""
    return f"[version {version}](#/models/{model_name(domain)}/versions/{version})"


def _reason(tags: Mapping[str, str]) -> str:
    return tags.get("decision_reason", "")


def _measured(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    get = tags.get
    interval = f" ({number(get('gain_ci_low'), True)} to {number(get('gain_ci_high'), True)})"
    return [
        ("acceptance of this version", number(get("acceptance_rate"))),
        ("acceptance of the champion then", number(get("champion_acceptance_rate"))),
        ("gain, and its interval", number(get("gain"), True) + interval if get("gain") else ""),
        ("held out", _both(get("heldout_requests"), "requests", get("heldout_tokens"), "tokens")),
        ("head", _head(tags)),
    ]


def _live(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Whatever the canary and the watch counted: the tag's name is the label."""
    rows = [(key.replace("_", " "), _short(value)) for key, value in sorted(tags.items()) if _is_live(key)]
    return [("canary", tags[CANARY]), *rows] if CANARY in tags else rows


def _is_live(key: str) -> bool:
    return key.startswith(_LIVE) and key != CANARY_STARTED


def _trained(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    get = tags.get
    return [
        ("samples", _both(get("train_requests"), "requests", get("train_tokens"), "tokens")),
        ("of which replayed from earlier ranges", _with_unit(get("replayed_tokens"), "tokens")),
        ("stream entries", _between(get("stream_first_id"), get("stream_last_id"))),
        ("lost before they were seen", get("stream_lost", "")),
        ("precision", get("precision_effective", "")),
        ("training round", _code(get("round_id"))),
    ]


def _lineage(info: VersionInfo) -> list[tuple[str, str]]:
    get = info.tags.get
    return [
        ("measured against", _named(info.domain, get("parent_version"))),
        ("training began from", _named(info.domain, get("started_from"))),
        ("champion before it", _named(info.domain, get("champion_before"))),
        ("copied from", _code(get(ADOPTED_FROM))),
        ("base draft", _code(get("base_draft_fingerprint"))),
        ("target", _code(get("target_fingerprint"))),
        ("sha256 of the weights", _code(get("sha256"))),
    ]


def _named(domain: str, version: str | None) -> str:
    if version == "base":
        return "the base draft (no adapter)"
    return version_link(domain, version) if version and version.isdigit() else version or ""


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows if value]
    return "\n".join([f"| {title} | |", "|---|---|", *lines]) if lines else ""


def _quoted(title: str, text: str | None, when: str | None = None) -> str:
    return f"> **{title}{f' at {when}' if when else ''}:** {_cut(text)}" if text else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_REASON else text[:_MOST_REASON] + " …"


def _cell(value: str) -> str:
    return _cut(value).replace("|", "\\|").replace("\n", " ")


def _head(tags: Mapping[str, str]) -> str:
    size, coverage = tags.get("head_size"), number(tags.get("head_coverage"))
    return f"{size} ids, {coverage} of the held-out tokens" if size and coverage else ""


def _both(first: str | None, unit: str, second: str | None, other: str) -> str:
    return f"{first} {unit}, {second} {other}" if first and second else ""


def _with_unit(value: str | None, unit: str) -> str:
    return f"{value} {unit}" if value else ""


def _between(first: str | None, last: str | None) -> str:
    return f"`{first}` to `{last}`" if first and last else ""


def _code(value: str | None) -> str:
    return f"`{value}`" if value else ""


def _short(value: str) -> str:
    parsed = _float(value)
    return value if parsed is None or parsed.is_integer() else f"{parsed:.4g}"


def _float(value: str) -> float | None:
    try:
        parsed = float(value)
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) else None
