"""The rows behind `redraft status`, gathered from the stream, the registry and a serving worker."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redraft_ops.errors import ServerUnreachable
from redraft_ops.settings import Settings
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from redraft_models.registry import VersionInfo

SECONDS = 5.0
_SHOWN = {
    "domain",
    "version",
    "base_draft_fingerprint",
    "acceptance_rate",
    "tested",
    "num_speculative_tokens",
}


def domain_rows(
    stack: Stack, wanted: Sequence[str] | None, url: str | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per domain, and remarks for a person.

    Raises ServerUnreachable, StreamUnavailable or RegistryUnavailable, within seconds. A serving worker
    that does not
    answer is only remarked on, unless its address was given.
    """
    stack.require_redis()
    drafts, remarks = _drafts(stack.settings, url)
    stream, registry = stack.stream(), stack.registry()
    known = {*stack.settings.domains, *stream.domains(), *drafts}
    rows = []
    shown = list(wanted or sorted(known))
    for domain in shown:
        newest, champion, made = registry.newest(domain), registry.champion(domain), registry.cursor(domain)
        cursor = made.tags if made else {}
        rows.append(_row(stack, domain, drafts.get(domain), newest, champion, cursor))
    return rows, [*remarks, *_reasons(drafts, shown)]


def _reasons(drafts: Mapping[str, dict[str, Any]], domains: Sequence[str]) -> list[str]:
    """Why each domain speculates as far as it does, in the policy's own words."""
    said = ((domain, _policy(drafts.get(domain)).get("reason")) for domain in domains)
    return [f"domain {domain}, {reason}" for domain, reason in said if reason]


def _row(
    stack: Stack,
    domain: str,
    serving: dict[str, Any] | None,
    newest: VersionInfo | None,
    champion: VersionInfo | None,
    cursor: Mapping[str, str],
) -> dict[str, Any]:
    tags = newest.tags if newest else {}
    backlog = stack.stream().backlog(
        domain, cursor.get("stream_last_id"), int(cursor.get("stream_last_ordinal", 0))
    )
    registered = champion.version if champion else "base"
    return {
        "domain": domain,
        "version": serving["version"] if serving else registered,
        "draft": stack.settings.models.draft,
        "base_draft_fingerprint": (
            serving["base_draft_fingerprint"] if serving else tags.get("base_draft_fingerprint")
        ),
        "acceptance_rate": serving["acceptance_rate"] if serving else None,
        "measured_gain": _policy(serving).get("measured_gain"),
        "tested_tokens": serving["tested"] if serving else 0,
        "num_speculative_tokens": (
            serving["num_speculative_tokens"] if serving else stack.settings.serving.num_speculative_tokens
        ),
        "stream_length": backlog.length,
        "unseen": backlog.unseen,
        "lost": backlog.lost,
        "last_round": _last_round(newest),
    }


def _policy(serving: dict[str, Any] | None) -> dict[str, Any]:
    """What the policy says of a domain; nothing where the engine has none, or hasn't met the domain."""
    found = serving.get("policy") if serving else None
    return found if isinstance(found, dict) else {}


def _last_round(newest: VersionInfo | None) -> dict[str, Any] | None:
    if newest is None:
        return None
    tags = newest.tags
    return {
        "round_id": tags.get("round_id"),
        "version": newest.version,
        "decision": tags.get("decision") or tags.get("validation_status"),
        "reason": tags.get("decision_reason"),
        "acceptance_rate": _number(tags.get("acceptance_rate")),
        "champion_acceptance_rate": _number(tags.get("champion_acceptance_rate")),
        "created_ms": newest.created_ms,
    }


def _number(text: str | None) -> float | None:
    from redraft_ops.output import finite

    try:
        return finite(float(text)) if text is not None else None
    except ValueError:
        return None


def _drafts(settings: Settings, url: str | None) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What the serving worker says of its drafts, by domain."""
    base = url or f"http://{settings.serving.host}:{settings.serving.port}"
    key = settings.serving.api_key
    cause: Exception
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    try:
        request = urllib.request.Request(f"{base.rstrip('/')}/v1/drafts", headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return _by_domain(json.load(response)), []
    except urllib.error.HTTPError as error:
        error.close()
        problem, cause = f"the server at {base} answered {error.code} to /v1/drafts", error
    except (OSError, ValueError, http.client.HTTPException) as error:
        problem, cause = f"no serving worker answers at {base}", error
    if url is not None:
        raise ServerUnreachable(f"{problem} ({cause}); start `redraft serve`") from cause
    return {}, [f"{problem}: versions are the registry's, without live acceptance"]


def _by_domain(answer: Any) -> dict[str, dict[str, Any]]:
    """The drafts of an answer, which may come from any program that has the port. Raises ValueError."""
    drafts = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(drafts, list) or not all(isinstance(d, dict) and d.keys() >= _SHOWN for d in drafts):
        raise ValueError("its answer lists no drafts")
    return {draft["domain"]: draft for draft in drafts}
