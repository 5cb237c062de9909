"""One row per domain, with the keys of `redraft status --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from redraft_models.registry_names import ADOPTED_FROM, STATUS

from redraft_ops.glance.findings import findings_of
from redraft_ops.glance.gather import Glance
from redraft_ops.glance.versions import DomainVersions, Version
from redraft_ops.settings import Settings

KEYS = {
    "domain": "name",
    "version": 'version that serves, or the registry\'s champion where no serving worker answers; "base"',
    "champion": 'version that the registry wants to be served, or "base"',
    "shared_from": "domain whose draft serves this one, or null",
    "draft": "base draft of the settings",
    "base_draft_fingerprint": "of the draft that serves",
    "acceptance_rate": "live: accepted / tested since this version serves",
    "tested_tokens": "tokens behind acceptance_rate",
    "measured_gain": "measured time per token of plain decoding / of speculation; above 1 is a gain",
    "time_per_token_ms": "mean decoding time per token of finished requests",
    "num_speculative_tokens": "tokens proposed per round now",
    "speculation": "speculating | probing | off | fixed",
    "stream_length": "samples in the stream",
    "unseen": "of these, not yet trained on",
    "lost": "samples trimmed before a round could read them",
    "dropped": "samples that the serving worker dropped before they reached Redis",
    "dead_letters": "stream entries that can't be used",
    "last_round": "newest version: round_id, version, decision, reason, rates, gain with interval; null",
    "canary": "version and started_ms of a running canary; null",
    "trial": "the serving worker's card of the running canary or watch, as in GET /v1/drafts; null",
    "schedule": "what asks for the next round, when, and how the last one ended (seconds and ms)",
    "findings": "sentences about what an operator should know",
}
"""What each key means; rates are between 0 and 1, unknown values null."""


def rows_of(settings: Settings, glance: Glance) -> list[dict[str, Any]]:
    """The rows in the order of the glance's domains."""
    rows = [_row(settings, glance, domain) for domain in glance.domains]
    return [{**row, "findings": findings_of(glance, row)} for row in rows]


def _row(settings: Settings, glance: Glance, domain: str) -> dict[str, Any]:
    versions, serving = glance.versions[domain], glance.serving.drafts.get(domain)
    backlog = glance.backlogs[domain]
    champion = versions.champion.number if versions.champion else "base"
    tags = versions.newest.tags if versions.newest else {}
    fingerprint = tags.get("base_draft_fingerprint")
    k = settings.serving.num_speculative_tokens
    return {
        "domain": domain,
        "version": serving["version"] if serving else champion,
        "champion": champion,
        "shared_from": settings.shared_drafts.get(domain),
        "draft": settings.models.draft,
        "base_draft_fingerprint": serving["base_draft_fingerprint"] if serving else fingerprint,
        "acceptance_rate": serving["acceptance_rate"] if serving else None,
        "measured_gain": policy_of(serving).get("measured_gain"),
        "time_per_token_ms": _time_per_token(glance.serving.summaries.get(domain)),
        "tested_tokens": serving["tested"] if serving else 0,
        "num_speculative_tokens": serving["num_speculative_tokens"] if serving else k,
        "speculation": serving.get("state") if serving else None,
        "stream_length": backlog.length,
        "unseen": backlog.unseen,
        "lost": backlog.lost,
        "dropped": sum(glance.serving.dropped.values()),
        "dead_letters": glance.dead.get(domain, 0),
        "last_round": _last_round(versions),
        "canary": _canary(versions.canary),
        "trial": _trial(serving),
        "schedule": glance.schedules[domain].to_dict(),
    }


def policy_of(serving: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What the policy says of a domain; nothing where the engine has none, or hasn't met the domain."""
    found = serving.get("policy") if serving else None
    return found if isinstance(found, dict) else {}


def _time_per_token(summary: Mapping[str, Any] | None) -> float | None:
    tokens = summary.get("decoded_tokens") if summary else None
    seconds = summary.get("decode_seconds") if summary else None
    if not isinstance(tokens, int) or not isinstance(seconds, int | float) or tokens <= 0:
        return None
    return round(1000 * seconds / tokens, 3)


def _last_round(versions: DomainVersions) -> dict[str, Any] | None:
    newest = versions.newest
    if newest is None:
        return None
    tags = newest.tags
    numbers = ("acceptance_rate", "champion_acceptance_rate", "gain", "gain_ci_low", "gain_ci_high")
    return {
        "round_id": tags.get("round_id"),
        "version": newest.number,
        "decision": _decision(newest),
        "reason": tags.get("decision_reason"),
        **{name: _number(tags.get(name)) for name in numbers},
        "created_ms": newest.created_ms,
    }


def _decision(version: Version) -> str | None:
    """What came of a round so far: one that won its comparison is not champion while its canary runs, and a
    new domain's first version is no round's.
    """
    if version.canary_runs:
        return "approved"
    decision = version.tags.get("decision") or version.tags.get(STATUS)
    return "adopted" if decision == "promoted" and ADOPTED_FROM in version.tags else decision


def _canary(version: Version | None) -> dict[str, Any] | None:
    if version is None:
        return None
    started = version.tags.get("canary_started_ms", "")
    return {"version": version.number, "started_ms": int(started) if started.isdigit() else None}


def _trial(serving: Mapping[str, Any] | None) -> dict[str, Any] | None:
    found = serving.get("trial") if serving else None
    return found if isinstance(found, dict) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
