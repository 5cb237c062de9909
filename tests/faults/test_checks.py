"""The checks go red on what they are there to find. No deployment is needed for that."""

from __future__ import annotations

import pytest
from redraft_models.registry import VersionInfo

from .checks import apart, nobody_noticed
from .traffic import Record, Traffic


def traffic(*records: Record) -> Traffic:
    """Traffic that has had these answers; the right one to "a" is "b"."""
    return Traffic(["http://127.0.0.1:1"], {"a": "b"}, records=list(records))


def version(number: int, first: str, last: str, round_id: str) -> VersionInfo:
    tags = {"stream_first_id": first, "stream_last_id": last, "round_id": round_id}
    return VersionInfo("default", number, "run", "READY", 0, "", tags)


def test_a_failed_request_and_a_wrong_text_are_noticed() -> None:
    right = Record("a", 200, "b", 0.0, 0.1)
    nobody_noticed(traffic(right))
    for wrong in (
        Record("a", 503, "", 0.0, 0.1),
        Record("a", 0, "gone", 0.0, 0.1),
        Record("a", 200, "c", 0.0, 0.1),
    ):
        with pytest.raises(AssertionError):
            nobody_noticed(traffic(right, wrong))
    with pytest.raises(AssertionError):
        nobody_noticed(traffic())


def test_overlapping_ranges_and_a_round_with_two_versions_are_noticed() -> None:
    first = version(1, "1-0", "9-5", "one")
    apart([first, version(2, "10-0", "12-0", "two")])
    for wrong in (version(2, "9-5", "12-0", "two"), version(2, "10-0", "12-0", "one")):
        with pytest.raises(AssertionError):
            apart([first, wrong])
