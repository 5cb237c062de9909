"""What a person reads in MLflow's UI of a domain's experiment and of each version, as Markdown.

A version's text is made of its tags alone, so it can be renewed at any time by anybody.
"""

from collections.abc import Mapping

from redraft_models.registry_live import live_tables
from redraft_models.registry_markdown import (
    MOST_CHARACTERS,
    code,
    cut,
    facts,
    interval,
    moment,
    named,
    number,
)
from redraft_models.registry_names import (
    ADOPTED_FROM,
    APPROVED,
    CANARY,
    FAILED,
    GATE_REASON,
    OVERTAKEN,
    RUNNING,
    STATUS,
    UNDECIDED,
    model_name,
)
from redraft_models.registry_versions import VersionInfo

_HEADLINES = {
    "candidate": "Candidate, not settled yet.",
    "on trial": "On trial: approved by the gate, it serves a share of the traffic beside the champion.",
    "promoted": "Promoted to champion.",
    "adopted": "Adopted: the domain's first draft, copied from another domain's champion.",
    "rolled back": "Rolled back: it was champion until",
    "failed its canary": "Not promoted: approved by the gate, but worse than the champion when served.",
    "canary undecided": "Not promoted: approved by the gate, but its canary ended without a decision.",
    "overtaken": "Not promoted: the champion changed before its canary had ended.",
    "rejected": "Not promoted.",
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
        f"{_HEADLINES[standing(tags)]} {cut(_why(tags))}".strip(),
        *(f"> {quote}" for quote in _earlier_reasons(tags)),
        facts("Measured by the gate, on held-out samples", _measured(tags)),
        live_tables(info.domain, tags),
        facts("Trained on", [] if ADOPTED_FROM in tags else _trained(tags)),
        facts("Lineage", _lineage(info)),
    ]
    return "\n\n".join(part for part in parts if part)[:MOST_CHARACTERS]


def _why(tags: Mapping[str, str]) -> str:
    if "rollback_reason" in tags:
        return f"{moment(tags.get('rolled_back_at'))}: {tags['rollback_reason']}"
    return tags.get("decision_reason", "")


def _earlier_reasons(tags: Mapping[str, str]) -> list[str]:
    """What was said of it before, where a later event stands above."""
    said = [tags.get(GATE_REASON), tags.get("decision_reason") if "rollback_reason" in tags else None]
    return [f"Earlier, when it was approved: {cut(reason)}" for reason in said if reason]


def _measured(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    get = tags.get
    return [
        ("acceptance of this version", number(get("acceptance_rate"))),
        ("acceptance of the champion then", number(get("champion_acceptance_rate"))),
        ("gain (interval)", interval(get("gain"), get("gain_ci_low"), get("gain_ci_high"))),
        ("held out", _both(get("heldout_requests"), "requests", get("heldout_tokens"), "tokens")),
        ("on other domains that it serves", get("other_domains", "")),
        ("head", _head(tags)),
    ]


def _trained(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    get = tags.get
    return [
        ("samples", _both(get("train_requests"), "requests", get("train_tokens"), "tokens")),
        ("of these replayed from earlier ranges", f"{n} tokens" if (n := get("replayed_tokens")) else ""),
        ("stream entries", _between(get("stream_first_id"), get("stream_last_id"))),
        ("lost before any round saw them", get("stream_lost", "")),
        ("precision", get("precision_effective", "")),
        ("training round", code(get("round_id"))),
    ]


def _lineage(info: VersionInfo) -> list[tuple[str, str]]:
    get = info.tags.get
    return [
        ("measured against", "" if ADOPTED_FROM in info.tags else named(info.domain, get("parent_version"))),
        ("training began from", named(info.domain, get("started_from"))),
        ("champion before it", named(info.domain, get("champion_before"))),
        ("copied from", code(get(ADOPTED_FROM))),
        ("base draft", code(get("base_draft_fingerprint"))),
        ("target", code(get("target_fingerprint"))),
        ("sha256 of the weights", code(get("sha256"))),
    ]


def _head(tags: Mapping[str, str]) -> str:
    size, coverage = tags.get("head_size"), number(tags.get("head_coverage"))
    return f"{size} ids, {coverage} of the held-out tokens" if size and coverage else ""


def _both(first: str | None, unit: str, second: str | None, other: str) -> str:
    return f"{first} {unit}, {second} {other}" if first and second else ""


def _between(first: str | None, last: str | None) -> str:
    return f"`{first}` to `{last}`" if first and last else ""
