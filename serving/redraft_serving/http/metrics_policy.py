"""The part of /metrics that tells, per domain, how far the engine speculates, what it gains and from which
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from redraft_serving.engine.interface import DraftStatistics
from redraft_serving.http.families import Values, counter, gauge
from redraft_serving.policy.types import PolicyReport

_GAUGES: dict[str, tuple[str, Callable[[PolicyReport], float | None]]] = {
    "redraft_break_even_acceptance": (
        "Per-token acceptance at which speculating would just pay for itself.",
        lambda policy: policy.break_even_acceptance,
    ),
    "redraft_modelled_gain": (
        "Tokens/s over those of plain decoding, as the policy models them.",
        lambda policy: policy.modelled_gain,
    ),
    "redraft_measured_gain": (
        "Tokens/s of speculating rounds over those of plain rounds, as lately measured.",
        lambda policy: policy.measured_gain,
    ),
    "redraft_draft_step_seconds": (
        "Time of one step of the draft.",
        lambda policy: policy.draft_step_seconds,
    ),
    "redraft_verify_seconds": (
        "Time of the target's pass over a proposal.",
        lambda policy: policy.verify_seconds,
    ),
    "redraft_plain_seconds": ("Time of a plain round of as many rows.", lambda policy: policy.plain_seconds),
    "redraft_rest_seconds": ("Time of a round outside of the models.", lambda policy: policy.rest_seconds),
}
_COUNTERS: dict[str, tuple[str, Callable[[PolicyReport], int]]] = {
    "redraft_policy_switches": ("Changes between speculating and off.", lambda policy: policy.switches),
    "redraft_policy_probes": (
        "Rounds that speculated to measure while off.",
        lambda policy: policy.probes,
    ),
    "redraft_policy_baselines": (
        "Rounds that decoded plainly to measure while on.",
        lambda policy: policy.baselines,
    ),
}


def policy_families(drafts: Sequence[DraftStatistics]) -> Iterator[Metric]:
    """State, acceptance and gain of every domain, then the numbers behind them. One draft of each domain."""
    yield from _states(drafts)
    yield _rate(drafts)
    reports = [(draft.domain, draft.policy) for draft in drafts if draft.policy is not None]
    yield _positions(reports)
    for name, (text, value) in _GAUGES.items():
        yield gauge(name, text, [({"domain": domain}, value(report)) for domain, report in reports])
    for name, (text, count) in _COUNTERS.items():
        yield counter(name, text, [({"domain": domain}, count(report)) for domain, report in reports])


def _states(drafts: Sequence[DraftStatistics]) -> Iterator[Metric]:
    states = [({"domain": draft.domain}, int(_speculates(draft))) for draft in drafts]
    yield gauge("redraft_speculation_state", "1 where a domain speculates, 0 where it is off.", states)
    numbers = [({"domain": draft.domain}, draft.num_speculative_tokens) for draft in drafts]
    text = "Tokens proposed per row in the last decided round."
    yield gauge("redraft_num_speculative_tokens", text, numbers)


def _speculates(draft: DraftStatistics) -> bool:
    fixed_at_none = draft.state == "fixed" and not draft.num_speculative_tokens
    return draft.state != "off" and not fixed_at_none


def count_families(drafts: Sequence[DraftStatistics]) -> Iterator[Metric]:
    """Of every arm by version: a swap begins a new series, in place of a counter that falls."""
    versions = [
        (draft, {"domain": draft.domain, "version": str(draft.version), "arm": draft.arm}) for draft in drafts
    ]
    tested = [(labels, draft.tested) for draft, labels in versions]
    yield counter("redraft_draft_tested_tokens", "Compared tokens of the serving draft.", tested)
    accepted = [(labels, draft.accepted) for draft, labels in versions]
    yield counter("redraft_draft_accepted_tokens", "Accepted tokens of the serving draft.", accepted)


def _rate(drafts: Sequence[DraftStatistics]) -> Metric:
    rates = [
        ({"domain": draft.domain}, draft.accepted / draft.tested if draft.tested else None)
        for draft in drafts
    ]
    return gauge("redraft_acceptance_rate", "Accepted over tested, since the draft serves.", rates)


def _positions(reports: Sequence[tuple[str, PolicyReport]]) -> Metric:
    values: Values = [
        ({"domain": domain, "proposer": proposer, "position": str(position)}, rate)
        for domain, report in reports
        for proposer, rates in report.acceptance_by_position.items()
        for position, rate in enumerate(rates)
    ]
    text = "Accepted over tested at each position, recent counts weighted more."
    return gauge("redraft_acceptance_by_position", text, values)
