"""The rows behind `redraft status`, gathered from the stream, the registry and a serving worker."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redraft_ops.errors import ServerUnreachable
from redraft_ops.settings import Settings
from redraft_ops.stack import Stack

if TYPE_CHECKING:
    from redraft_models.registry import VersionInfo

SECONDS = 5.0


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
    for domain in wanted or sorted(known):
        newest, champion = registry.newest(domain), registry.champion(domain)
        rows.append(_row(stack, domain, drafts.get(domain), newest, champion))
    return rows, remarks


def _row(
    stack: Stack,
    domain: str,
    serving: dict[str, Any] | None,
    newest: VersionInfo | None,
    champion: VersionInfo | None,
) -> dict[str, Any]:
    tags = newest.tags if newest else {}
    backlog = stack.stream().backlog(
        domain, tags.get("stream_last_id"), int(tags.get("stream_last_ordinal", 0))
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
        "tested_tokens": serving["tested"] if serving else 0,
        "num_speculative_tokens": (
            serving["num_speculative_tokens"] if serving else stack.settings.serving.num_speculative_tokens
        ),
        "stream_length": backlog.length,
        "unseen": backlog.unseen,
        "lost": backlog.lost,
        "last_round": _last_round(newest),
    }


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
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    try:
        request = urllib.request.Request(f"{base.rstrip('/')}/v1/drafts", headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return {draft["domain"]: draft for draft in json.load(response)["data"]}, []
    except urllib.error.HTTPError as error:
        raise ServerUnreachable(f"the server at {base} answered {error.code} to /v1/drafts") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        if url is not None:
            raise ServerUnreachable(
                f"no serving worker answers at {url} ({error}); start `redraft serve`"
            ) from error
        return {}, [
            f"no serving worker answers at {base}: versions are the registry's, without live acceptance"
        ]
