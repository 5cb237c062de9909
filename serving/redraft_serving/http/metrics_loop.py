"""The part of /metrics that tells of the loop around a worker: stream, rounds, trials, workers, servers.

Every worker tells the whole loop's numbers as it last heard them: over workers take the maximum, not the
sum.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from redraft_serving.http.families import Values, counter, gauge
from redraft_serving.overview import Overview
from redraft_serving.overview.trials import trial_card

_ARM_NUMBERS = {
    "requests": "Finished requests of an arm.",
    "tested": "Compared tokens of an arm.",
    "accepted": "Accepted tokens of an arm.",
}


def loop_families(overview: Overview, domains: Sequence[str]) -> Iterator[Metric]:
    """All of them, from what was last heard: nothing here waits for a server."""
    yield from _servers(overview)
    yield from _streams(overview, domains)
    yield from _rounds(overview, domains)
    yield from _times(overview)
    yield from _workers(overview)
    yield from _live(overview, domains)
    yield from _trials(overview, domains)


def _servers(overview: Overview) -> Iterator[Metric]:
    for name, source in (("redis", overview.loop.redis_source), ("registry", overview.loop.registry_source)):
        up = None if source.up is None else int(source.up)
        text = f"1 where the {name} answered this worker's last look."
        yield gauge(f"redraft_{name}_up", text, [({}, up)])


def _streams(overview: Overview, domains: Sequence[str]) -> Iterator[Metric]:
    logs = [(domain, overview.loop.facts(domain).backlog) for domain in domains]
    known = [({"domain": domain}, backlog) for domain, backlog in logs if backlog is not None]
    length = [(labels, backlog.length) for labels, backlog in known]
    yield gauge("redraft_stream_length", "Samples in the stream.", length)
    unseen = [(labels, backlog.unseen) for labels, backlog in known]
    yield gauge("redraft_stream_unseen", "Samples that no training round has read yet.", unseen)


def _rounds(overview: Overview, domains: Sequence[str]) -> Iterator[Metric]:
    """Of the newest version that a training round made."""
    now_ms = time.time() * 1000
    newest = [(domain, _newest(overview.loop.facts(domain).rounds)) for domain in domains]
    found = [({"domain": domain}, row) for domain, row in newest if row is not None]
    gains = [(labels, row["gain"]) for labels, row in found]
    yield gauge("redraft_last_round_gain", "Measured acceptance gained by the last candidate.", gains)
    ages = [(labels, (now_ms - row["created_ms"]) / 1000) for labels, row in found if row["created_ms"]]
    yield gauge("redraft_round_seconds_ago", "Time since the last round's candidate.", ages)
    rollbacks = [({"domain": domain}, overview.loop.rollbacks.get(domain, 0)) for domain in domains]
    yield counter("redraft_rollbacks", "Champions seen to go back since this worker started.", rollbacks)


def _newest(rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((row for row in rounds if row["round_id"]), None)


def _times(overview: Overview) -> Iterator[Metric]:
    """Their ratio is the time per token that clients of a domain see."""
    sums = overview.times.all()
    seconds = [({"domain": domain}, one.seconds) for domain, one in sums.items()]
    yield counter("redraft_decode_seconds", "Decoding time of finished choices.", seconds)
    tokens = [({"domain": domain}, one.tokens) for domain, one in sums.items()]
    yield counter("redraft_decoded_tokens", "Tokens of finished choices after the first of each.", tokens)


def _workers(overview: Overview) -> Iterator[Metric]:
    """By role and host: of several processes on a host, the one that was heard of last."""
    ages: dict[tuple[str, str], float] = {}
    behind: dict[tuple[str, str], int] = {}
    for row in overview.loop.workers.rows():
        place = (row["role"], row["host"])
        ages[place] = min(row["age_seconds"], ages.get(place, row["age_seconds"]))
        behind[place] = behind.get(place, 0) + len(row["behind"])
    values: Values = [({"role": role, "host": host}, age) for (role, host), age in ages.items()]
    yield gauge("redraft_worker_heartbeat_age_seconds", "Time since a worker was heard of.", values)
    lagging: Values = [({"role": role, "host": host}, count) for (role, host), count in behind.items()]
    text = "Domains in which a worker has not followed its champion."
    yield gauge("redraft_worker_domains_behind", text, lagging)


def _live(overview: Overview, domains: Sequence[str]) -> Iterator[Metric]:
    """Moving averages: what falls in the short one and not in the long one has happened lately."""
    found = {} if overview.live is None else overview.live.view()
    rates = [
        ({"domain": domain, "window": window}, float(found[domain][window]))
        for domain in domains
        if domain in found
        for window in ("short", "long")
    ]
    yield gauge("redraft_live_acceptance", "Moving average of accepted over tested.", rates)


def _trials(overview: Overview, domains: Sequence[str]) -> Iterator[Metric]:
    """Both arms of each running trial: what a decision will be made from."""
    trials = [(domain, trial_card(overview.trials, domain)) for domain in domains]
    arms = [
        ({"domain": domain, "arm": str(name)}, arm)
        for domain, trial in trials
        if trial is not None
        for name, arm in trial["arms"].items()
    ]
    for key, text in _ARM_NUMBERS.items():
        yield gauge(f"redraft_trial_{key}", text, [(labels, arm[key]) for labels, arm in arms])
    shares = [({"domain": domain}, trial["share"]) for domain, trial in trials if trial is not None]
    yield gauge("redraft_trial_share", "Share of requests that the arm on trial serves.", shares)
