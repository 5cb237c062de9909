"""Which draft serves which domain, also before its first request."""

from __future__ import annotations

from typing import Any

from redraft_serving.engine.interface import DraftStatistics, Engine, EngineStatistics
from redraft_serving.http.domains import Domains
from redraft_serving.http.served import ServedModel


def known_drafts(found: EngineStatistics, engine: Engine, domains: Domains) -> list[DraftStatistics]:
    """The engine's drafts, and for domains that it has not met yet the base draft with all counts zero."""
    met = {draft.domain for draft in found.drafts}
    setting = engine.num_speculative_tokens
    state = "speculating" if setting == "auto" else "fixed" if setting else "off"
    k = 0 if setting == "auto" else setting
    fresh = [
        DraftStatistics(domain, "base", 0, 0, 0, 0, 0, (), (), None, None, k, state)
        for domain in domains.names()
        if domain not in met
    ]
    return [*found.drafts, *fresh]


def draft_card(model: ServedModel, draft: DraftStatistics) -> dict[str, Any]:
    """One item of GET /v1/drafts. A rate without data is null."""
    adapter = draft.adapter
    parts = None
    if adapter is not None:
        parts = {"r": adapter.r, "lora_alpha": adapter.lora_alpha, "sha256": adapter.sha256}
    return {
        "domain": draft.domain,
        "version": draft.version,
        "base_draft_fingerprint": model.base_draft_fingerprint,
        "target_fingerprint": model.target_fingerprint,
        "tokenizer_fingerprint": model.tokenizer_fingerprint,
        "adapter": parts,
        "checksum": draft.checksum,
        "rounds": draft.rounds,
        "proposed": draft.proposed,
        "tested": draft.tested,
        "accepted": draft.accepted,
        "emitted": draft.emitted,
        "acceptance_rate": draft.accepted / draft.tested if draft.tested else None,
        "num_speculative_tokens": draft.num_speculative_tokens,
        "state": draft.state,
    }
