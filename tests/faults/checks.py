"""What must hold after every fault, whatever it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from redraft_models.registry import VersionInfo
from redraft_queue.positions import id_key

from .deployment import Deployment
from .probes import metric, until
from .traffic import Traffic

DRAIN_SECONDS = 60.0
DROPPED, WRITTEN = "redraft_samples_dropped_total", "redraft_samples_written_total"
WHOLE_ROUND_SECONDS = 240.0


def nobody_noticed(traffic: Traffic) -> None:
    """No request failed, and every text is the target's own."""
    assert traffic.records
    assert traffic.failures()[:3] == []
    assert traffic.wrong()[:3] == []


def in_stream(deployment: Deployment, domain: str = "default") -> list[tuple[str, str]]:
    """(entry, request) of every sample that can be read; duplicates are there as often as they lie there."""
    found = deployment.valkey.client().xrange(f"redraft:samples:{domain}")
    from redraft_queue.records import Sample

    return [(entry.decode(), Sample.unpack(fields[b"sample"]).request_id) for entry, fields in found]


def nothing_lost(deployment: Deployment, traffic: Traffic) -> float:
    """Every answered request has its sample in the stream; none became a dead letter or was dropped.

    Returns the seconds until the last one was there.
    """
    answered = {record.id for record in traffic.records if record.status == 200}
    seconds = until(
        lambda: answered <= {request for _, request in in_stream(deployment, traffic.domain)},
        DRAIN_SECONDS,
        "samples of answered requests are missing in the stream",
    )
    assert deployment.stream().dead_length(traffic.domain) == 0
    for url in traffic.urls:
        assert metric(url, DROPPED) == 0
    return seconds


def written_is_there(deployment: Deployment, traffic: Traffic) -> None:
    """As many samples as the workers say that Redis has acknowledged are in the stream, or more."""
    written = sum(metric(url, WRITTEN) for url in traffic.urls)
    assert len(in_stream(deployment, traffic.domain)) >= written


def ranges(deployment: Deployment, domain: str = "default") -> list[VersionInfo]:
    """Versions that a round made, oldest first."""
    found = deployment.registry().versions(domain)[::-1]
    return [info for info in found if info.tags.get("stream_first_id")]


def trained_once(deployment: Deployment, domain: str = "default") -> int:
    """No sample is in the ranges of two versions, no range overlaps the next; returns the versions."""
    versions = ranges(deployment, domain)
    apart(versions)
    trained = Counter(_trained(in_stream(deployment, domain), versions))
    assert not [request for request, count in trained.items() if count > 1]
    return len(versions)


def apart(versions: Sequence[VersionInfo]) -> None:
    """Each range begins behind the one before, and each round has one version."""
    for before, after in pairwise(versions):
        last, first = before.tags["stream_last_id"], after.tags["stream_first_id"]
        assert id_key(last) < id_key(first), f"versions {before.version} and {after.version} overlap"
    rounds = Counter(info.tags["round_id"] for info in versions)
    assert not [one for one, count in rounds.items() if count > 1]


def another_version(deployment: Deployment, seconds: float = WHOLE_ROUND_SECONDS) -> float:
    """Wait for a round to register and settle a version that is not there yet; returns the seconds."""
    before = max((info.version for info in ranges(deployment)), default=0)

    def settled() -> bool:
        newest = max(ranges(deployment), key=lambda info: info.version, default=None)
        return (
            newest is not None
            and newest.version > before
            and newest.validation_status in ("approved", "rejected")
        )

    return until(settled, seconds, "no round has brought a version")


def _trained(entries: list[tuple[str, str]], versions: list[VersionInfo]) -> list[str]:
    """Requests, as often as there are versions whose range holds their first copy: later ones are dropped."""
    spans = [(id_key(v.tags["stream_first_id"]), id_key(v.tags["stream_last_id"])) for v in versions]
    first: dict[str, str] = {}
    for entry, request in entries:
        first.setdefault(request, entry)
    return [
        request for request, entry in first.items() for begin, end in spans if begin <= id_key(entry) <= end
    ]
