"""What a serving worker says of its drafts."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redraft_ops.errors import ServerUnreachable
from redraft_ops.settings import Settings

SECONDS = 1.5
_ABSENT = 404
_SHOWN = {
    "domain",
    "version",
    "base_draft_fingerprint",
    "acceptance_rate",
    "tested",
    "num_speculative_tokens",
}

Draft = dict[str, Any]


@dataclass(frozen=True)
class Serving:
    """One worker's answer, or why there is none."""

    drafts: Mapping[str, Draft] = field(default_factory=dict)
    summaries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By domain: decoding time and tokens, as GET /v1/overview has them."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Samples that this worker dropped before they reached Redis, by reason."""
    lost: Mapping[str, int] = field(default_factory=dict)
    remark: str | None = None


def ask_serving(settings: Settings, url: str | None) -> Serving:
    """The drafts of the worker at `url`, or at host and port of the settings.

    Raises ServerUnreachable only where the address was given.
    """
    base = (url or f"http://{settings.serving.host}:{settings.serving.port}").rstrip("/")
    cause: Exception
    try:
        return _answer(base, settings)
    except urllib.error.HTTPError as error:
        error.close()
        problem, cause = f"the server at {base} answered {error.code} to /v1/drafts", error
    except (OSError, ValueError, http.client.HTTPException) as error:
        problem, cause = f"no serving worker answers at {base}", error
    if url is not None:
        raise ServerUnreachable(f"{problem} ({cause}); start `redraft serve`") from cause
    return Serving(remark=f"{problem}: versions are the registry's, without live acceptance")


def _answer(base: str, settings: Settings) -> Serving:
    """The overview, which has everything, or the drafts alone from a worker that has none."""
    try:
        overview = _get(f"{base}/v1/overview", settings)
        drafts = _by_domain(overview.get("drafts") if isinstance(overview, dict) else None)
    except (urllib.error.HTTPError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        found = _get(f"{base}/v1/drafts", settings)
        return Serving(_by_domain(found.get("data") if isinstance(found, dict) else None))
    samples = _mapping(overview.get("samples"))
    rows = overview.get("domains")
    named = (
        [row for row in rows if isinstance(row, dict) and "domain" in row] if isinstance(rows, list) else []
    )
    return Serving(
        drafts,
        {row["domain"]: row for row in named},
        _counts(samples.get("dropped")),
        _counts(samples.get("lost")),
    )


def _get(address: str, settings: Settings) -> Any:
    key = settings.serving.admin_key or settings.serving.api_key
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return json.load(response)


def _by_domain(drafts: Any) -> dict[str, Draft]:
    """The drafts of an answer, which may come from any program that has the port. Raises ValueError."""
    if not isinstance(drafts, list) or not all(isinstance(d, dict) and d.keys() >= _SHOWN for d in drafts):
        raise ValueError("its answer lists no drafts")
    return {draft["domain"]: draft for draft in drafts}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _counts(value: Any) -> dict[str, int]:
    return {str(name): count for name, count in _mapping(value).items() if isinstance(count, int)}
