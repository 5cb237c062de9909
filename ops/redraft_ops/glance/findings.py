"""What an operator should know, one sentence each. Pure functions of what was gathered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from redraft_ops.glance.gather import Glance

ROLES = {"serving": "redraft serve", "trainer": "redraft worker", "beat": "redraft beat"}
"""Roles that a whole deployment shows signs of life of, and the command that each is."""
SETTLE_SECONDS = 30.0
"""A worker that has not followed a champion so soon after its promotion is not lagging yet."""

Row = Mapping[str, Any]


def findings_of(glance: Glance, row: Row) -> list[str]:
    """All findings of a domain, the most urgent first."""
    return [
        *_silent(glance),
        *_lagging(glance, row),
        *_missing_samples(glance, row),
        *_canary(row),
        *_rolled_back(glance, row),
        *_headroom(row),
        *_policy(glance, row),
        *_shared(row),
    ]


def _silent(glance: Glance) -> Iterator[str]:
    present = {sign.role for sign in glance.signs}
    for role, command in ROLES.items():
        if role not in present:
            yield f"no sign of life of any process of the role {role}; start `{command}`"


def _lagging(glance: Glance, row: Row) -> Iterator[str]:
    """Every serving worker says in its heartbeat what it serves."""
    champion = glance.versions[row["domain"]].champion
    if champion is not None and _age_seconds(champion.tags.get("promoted_at")) < SETTLE_SECONDS:
        return
    for sign in glance.signs:
        drafts = sign.details.get("drafts") if isinstance(sign.details, Mapping) else None
        served = drafts.get(row["domain"]) if sign.role == "serving" and isinstance(drafts, Mapping) else None
        if served is not None and str(served) != str(row["champion"]):
            yield (
                f"the serving worker {sign.pid} on {sign.host} lags: it serves {_named(served)}, the "
                f"champion is {_named(row['champion'])}; its log says why the swap failed"
            )


def _missing_samples(glance: Glance, row: Row) -> Iterator[str]:
    if row["lost"]:
        yield (
            f"{row['lost']} samples were trimmed before a round could read them; let rounds come sooner, or "
            "raise queue.stream_maxlen"
        )
    if glance.serving.dropped and row["dropped"]:
        reasons = ", ".join(
            f"{name} {count}" for name, count in sorted(glance.serving.dropped.items()) if count
        )
        yield f"the serving worker dropped {row['dropped']} samples before they reached Redis ({reasons})"
    if row["dead_letters"]:
        yield f"{row['dead_letters']} entries of the stream can't be used (dead letters)"


def _canary(row: Row) -> Iterator[str]:
    canary, trial = row["canary"], row["trial"] or {}
    if canary is not None:
        since = canary["started_ms"]
        age = "" if since is None else f" for {_duration(time.time() - since / 1000)}"
        said = _sentence(trial) if trial.get("kind") == "canary" else ""
        verb = "serves" if since is None else "has served"
        yield f"canary: {_named(canary['version'])} {verb} a share of the requests{age}{said}"
    elif trial.get("kind") == "watch":
        version, against = _named(trial.get("version")), _named(trial.get("against"))
        yield f"watch: {version} is compared with {against}{_sentence(trial)}"


def _sentence(trial: Mapping[str, Any]) -> str:
    """What the serving worker makes of the evidence so far."""
    said = trial.get("sentence")
    return f". {said.removesuffix('.')}" if isinstance(said, str) and said else ""


def _rolled_back(glance: Glance, row: Row) -> Iterator[str]:
    newest = glance.versions[row["domain"]].newest
    reason = newest.tags.get("rollback_reason") if newest else None
    if newest is not None and reason and newest.number != row["champion"]:
        yield f"version {newest.number} was left: {reason}"


def _headroom(row: Row) -> Iterator[str]:
    if row["schedule"]["headroom"]:
        yield row["schedule"]["headroom"]


def _policy(glance: Glance, row: Row) -> Iterator[str]:
    """Why the domain speculates as far as it does, in the policy's own words."""
    serving = glance.serving.drafts.get(row["domain"])
    policy = serving.get("policy") if serving else None
    reason = policy.get("reason") if isinstance(policy, dict) else None
    if isinstance(reason, str) and reason:
        yield reason


def _shared(row: Row) -> Iterator[str]:
    if row["shared_from"]:
        yield f"served with the draft of domain {row['shared_from']}; it has no rounds of its own"


def _named(version: object) -> str:
    return "the base draft" if version == "base" else f"version {version}"


def _age_seconds(moment: str | None) -> float:
    from datetime import datetime

    try:
        return time.time() - datetime.fromisoformat(moment).timestamp() if moment else float("inf")
    except ValueError:
        return float("inf")


def _duration(seconds: float) -> str:
    from redraft_queue.spoken import duration

    return duration(max(0.0, seconds))
