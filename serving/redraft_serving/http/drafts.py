"""Which draft serves which domain, also before its first request, and what the policy makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from redraft_serving.engine import memory_sums
from redraft_serving.engine.interface import CHAMPION, DraftStatistics, Engine, EngineStatistics, MemoryReport
from redraft_serving.http.domains import Domains
from redraft_serving.http.served import ServedModel
from redraft_serving.policy.types import PolicyReport


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


def champions(drafts: Iterable[DraftStatistics]) -> list[DraftStatistics]:
    """One per domain: what a trial serves beside them is told by its card."""
    return [draft for draft in drafts if draft.arm == CHAMPION]


def draft_card(model: ServedModel, draft: DraftStatistics, trials: Any = None) -> dict[str, Any]:
    """One item of GET /v1/drafts. A rate without data is null, and so is `trial` where none goes on."""
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
        "policy": None if draft.policy is None else policy_card(draft.policy),
        "trial": None if trials is None else trials.card(draft.domain),
    }


def policy_card(report: PolicyReport) -> dict[str, Any]:
    """What was chosen for a domain, why, and from which numbers. One without data is null."""
    positions = report.acceptance_by_position.items()
    return {
        "setting": report.setting,
        "state": report.state,
        "reason": report.reason,
        "num_speculative_tokens": report.num_speculative_tokens,
        "proposer": report.proposer,
        "acceptance_by_position": {name: [_number(rate) for rate in rates] for name, rates in positions},
        "draft_step_ms": _ms(report.draft_step_seconds),
        "verify_ms": _ms(report.verify_seconds),
        "plain_ms": _ms(report.plain_seconds),
        "rest_ms": _ms(report.rest_seconds),
        "break_even_acceptance": _number(report.break_even_acceptance),
        "modelled_gain": _number(report.modelled_gain),
        "measured_gain": _number(report.measured_gain),
        "switches": report.switches,
        "probes": report.probes,
        "baselines": report.baselines,
    }


def memory_card(report: MemoryReport) -> dict[str, Any]:
    """Where the engine's memory goes. `draft_costs_slots`: further rows that could run without the draft."""
    return {
        "target_bytes": report.target,
        "draft_bytes": report.draft,
        "slots": report.slots,
        "target_cache_bytes_per_slot": report.target_cache_per_slot,
        "draft_cache_bytes_per_slot": report.draft_cache_per_slot,
        "caches_bytes": memory_sums.caches(report),
        "prefix_cache_bytes": report.prefix_cache,
        "prefix_cache_limit_bytes": report.prefix_cache_limit,
        "total_bytes": memory_sums.held(report),
        "draft_costs_slots": _number(memory_sums.draft_slots(report)),
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _ms(seconds: float | None) -> float | None:
    return _number(None if seconds is None else seconds * 1000)
