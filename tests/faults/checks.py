"""What must hold after every fault: each check tells what is wrong, and nothing where all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from redraft_models.registry import VersionInfo
from redraft_queue.positions import id_key

from .deployment import Deployment
from .probes import metric, waited
from .traffic import Traffic

DRAIN_SECONDS = 60.0
DROPPED, WRITTEN = "redraft_samples_dropped_total", "redraft_samples_written_total"
WHOLE_ROUND_SECONDS = 240.0
MOST_TOLD = 3
"""Of many requests with one fault, the first few say enough."""


def amiss(deployment: Deployment, traffic: Traffic, since: float = 0.0) -> list[str]:
    """All that is wrong once the traffic has ended, which this does: what clients noticed, samples lost of
    requests `since` a moment of `time.monotonic()`, and samples trained on twice.
    """
    traffic.stop()
    return [*noticed(traffic), *lost(deployment, traffic, since), *trained_twice(deployment)]


def noticed(traffic: Traffic) -> list[str]:
    """What clients noticed: requests that failed, and texts that are not the target's own."""
    failed = [f"the request of {r.prompt!r} got {r.status}: {r.text}" for r in traffic.failures()]
    wrong = [
        f"the text of {r.prompt!r} is {r.text!r}, not {traffic.answers[r.prompt]!r}" for r in traffic.wrong()
    ]
    nothing = [] if traffic.records else ["no request was asked"]
    return [*nothing, *failed[:MOST_TOLD], *wrong[:MOST_TOLD]]


def in_stream(deployment: Deployment, domain: str = "default") -> list[tuple[str, str]]:
    """(entry, request) of every sample that can be read; duplicates are there as often as they lie there."""
    found = deployment.valkey.client().xrange(f"redraft:samples:{domain}")
    from redraft_queue.records import Sample

    return [(entry.decode(), Sample.unpack(fields[b"sample"]).request_id) for entry, fields in found]


def drained(deployment: Deployment, traffic: Traffic, since: float = 0.0) -> float:
    """Seconds until every request answered so far had its sample in the stream; infinite where one has none
    in time.
    """
    answered = {r.id for r in traffic.since(since) if r.status == 200}

    def there() -> bool:
        return answered <= {request for _, request in in_stream(deployment, traffic.domain)}

    return waited(there, DRAIN_SECONDS)


def unsampled(traffic: Traffic, entries: Iterable[tuple[str, str]], since: float = 0.0) -> list[str]:
    """Answered requests without a sample among the stream's entries."""
    written = {request for _, request in entries}
    return [r.id for r in traffic.since(since) if r.status == 200 and r.id not in written]


def lost(deployment: Deployment, traffic: Traffic, since: float = 0.0) -> list[str]:
    """Answered requests without a sample in the stream, samples that became dead letters, samples dropped."""
    drained(deployment, traffic, since)
    missing = unsampled(traffic, in_stream(deployment, traffic.domain), since)
    problems = [f"request {one} has no sample in the stream" for one in missing[:MOST_TOLD]]
    if dead := deployment.stream().dead_length(traffic.domain):
        problems.append(f"{dead} samples are dead letters")
    for url in traffic.urls:
        if dropped := metric(url, DROPPED):
            problems.append(f"{url} has dropped {dropped:g} samples")
    return problems


def forgotten(deployment: Deployment, traffic: Traffic) -> int:
    """Samples that Redis has acknowledged, as the workers say, and that the stream does not hold."""
    written = sum(metric(url, WRITTEN) for url in traffic.urls)
    return max(0, int(written) - len(in_stream(deployment, traffic.domain)))


def ranges(deployment: Deployment, domain: str = "default") -> list[VersionInfo]:
    """Versions that a round made, oldest first."""
    found = deployment.registry().versions(domain)[::-1]
    return [info for info in found if info.tags.get("stream_first_id")]


def trained_twice(deployment: Deployment, domain: str = "default") -> list[str]:
    """Samples that are in the ranges of two versions, and ranges that overlap."""
    versions = ranges(deployment, domain)
    return [*overlaps(versions), *in_two(in_stream(deployment, domain), versions)]


def overlaps(versions: Sequence[VersionInfo]) -> list[str]:
    """Ranges that share entries, and rounds with more than one version.

    By where they begin, not by version: a stream that was emptied starts again from the wall clock, and where
    that was stepped back its entries come before all that were trained on.
    """
    problems = []
    for before, after in pairwise(sorted(versions, key=lambda info: id_key(info.tags["stream_first_id"]))):
        if id_key(before.tags["stream_last_id"]) >= id_key(after.tags["stream_first_id"]):
            problems.append(f"the ranges of versions {before.version} and {after.version} overlap")
    rounds = Counter(info.tags["round_id"] for info in versions)
    return problems + [f"round {one} has made {count} versions" for one, count in rounds.items() if count > 1]


def in_two(entries: Iterable[tuple[str, str]], versions: Sequence[VersionInfo]) -> list[str]:
    """Requests whose sample is in several ranges; its first copy counts, as rounds drop later ones."""
    spans = [(id_key(v.tags["stream_first_id"]), id_key(v.tags["stream_last_id"])) for v in versions]
    first: dict[str, str] = {}
    for entry, request in entries:
        first.setdefault(request, entry)
    times = {
        request: sum(begin <= id_key(entry) <= end for begin, end in spans)
        for request, entry in first.items()
    }
    twice = {request: count for request, count in times.items() if count > 1}
    told = [f"the sample of request {one} was trained on {count} times" for one, count in twice.items()]
    return told[:MOST_TOLD]


def another_version(deployment: Deployment, seconds: float = WHOLE_ROUND_SECONDS) -> float:
    """Wait for a round to register and settle a version that is not there yet; returns the seconds, infinite
    where none has come.
    """
    before = max((info.version for info in ranges(deployment)), default=0)

    def settled() -> bool:
        newest = max(ranges(deployment), key=lambda info: info.version, default=None)
        return (
            newest is not None
            and newest.version > before
            and newest.validation_status in ("approved", "rejected")
        )

    return waited(settled, seconds)
