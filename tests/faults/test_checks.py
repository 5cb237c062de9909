"""The checks go red on what they are there to find. No deployment is needed for that."""

from __future__ import annotations

import math

from redraft_models.registry import VersionInfo

from .checks import in_two, noticed, overlaps, unsampled
from .probes import waited
from .traffic import Record, Traffic


def traffic(*records: Record) -> Traffic:
    """Traffic that has had these answers; the right one to "a" is "b"."""
    return Traffic(["http://127.0.0.1:1"], {"a": "b"}, records=list(records))


def version(number: int, first: str, last: str, round_id: str) -> VersionInfo:
    tags = {"stream_first_id": first, "stream_last_id": last, "round_id": round_id}
    return VersionInfo("default", number, "run", "READY", 0, "", tags)


def test_a_failed_request_and_a_wrong_text_are_noticed() -> None:
    right = Record("a", 200, "b", 0.0, 0.1)
    assert noticed(traffic(right)) == []
    for wrong, sentence in (
        (Record("a", 503, "busy", 0.0, 0.1), "the request of 'a' got 503: busy"),
        (Record("a", 0, "gone", 0.0, 0.1), "the request of 'a' got 0: gone"),
        (Record("a", 200, "c", 0.0, 0.1), "the text of 'a' is 'c', not 'b'"),
    ):
        assert noticed(traffic(right, wrong)) == [sentence]
    assert noticed(traffic()) == ["no request was asked"]


def test_an_answer_without_a_sample_is_noticed() -> None:
    """Of requests that were asked since a moment, and of those that were answered."""
    found = traffic(
        Record("a", 200, "b", 1.0, 0.1, "one"),
        Record("a", 200, "b", 5.0, 0.1, "two"),
        Record("a", 503, "", 5.0, 0.1, "three"),
    )
    assert unsampled(found, [("1-0", "one"), ("2-0", "two")]) == []
    assert unsampled(found, []) == ["one", "two"]
    assert unsampled(found, [("1-0", "one")]) == ["two"]
    assert unsampled(found, [], since=2.0) == ["two"]


def test_overlapping_ranges_and_a_round_with_two_versions_are_noticed() -> None:
    first = version(1, "1-0", "9-5", "one")
    assert overlaps([first, version(2, "10-0", "12-0", "two")]) == []
    touching = overlaps([first, version(2, "9-5", "12-0", "two")])
    assert touching == ["the ranges of versions 1 and 2 overlap"]
    assert overlaps([first, version(2, "10-0", "12-0", "one")]) == ["round one has made 2 versions"]


def test_ranges_of_a_stream_that_began_anew_under_an_earlier_clock_do_not_overlap() -> None:
    old = version(1, "100-0", "109-5", "one")
    new = version(2, "40-0", "44-0", "two")
    assert overlaps([old, new, version(3, "44-1", "45-0", "three")]) == []
    again = version(3, "43-0", "45-0", "three")
    assert overlaps([old, new, again]) == ["the ranges of versions 2 and 3 overlap"]


def test_a_sample_in_two_ranges_is_noticed() -> None:
    """A later copy of it in another range is none: rounds drop it."""
    versions = [version(1, "1-0", "9-5", "one"), version(2, "9-5", "12-0", "two")]
    assert in_two([("9-4", "a"), ("10-0", "b"), ("11-0", "a")], versions) == []
    assert in_two([("9-5", "a")], versions) == ["the sample of request a was trained on 2 times"]


def test_what_does_not_come_in_time_has_taken_forever() -> None:
    assert waited(lambda: True, 1.0) < 1.0
    assert waited(lambda: False, 0.1, pause=0.01) == math.inf
