"""The sample stream on a real server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import msgpack
import redis
from redraft_queue.records import Sample
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import ReadTally, SampleStream, StreamPosition

MakeSample = Callable[..., Sample]
MakeStream = Callable[..., SampleStream]
KEY = "redraft:samples:default"


def numbers(stream: SampleStream, after: str | None = None, through: str | None = None) -> list[int]:
    """The last prompt id of each sample in a range."""
    return [sample.prompt_ids[-1] for _, sample in stream.read("default", after, through)]


def test_an_unknown_domain_is_empty(make_stream: MakeStream) -> None:
    stream = make_stream()
    assert stream.position("default") == StreamPosition()
    assert stream.backlog("default", None, 0).new_entries == 0
    assert numbers(stream) == []
    assert (stream.dead("default"), stream.dead_length("default"), stream.domains()) == ([], 0, [])


def test_samples_come_back_in_order_by_range(make_stream: MakeStream, make_sample: MakeSample) -> None:
    stream = make_stream()
    ids = stream.append([make_sample(number) for number in range(200)])
    assert ids == sorted(ids, key=lambda entry: tuple(map(int, entry.split("-"))))
    assert [entry for entry, _ in stream.read("default", None, None)] == ids
    assert numbers(stream, ids[9], ids[149]) == list(range(10, 150))
    assert numbers(stream, ids[199]) == []
    position = stream.position("default")
    assert (position.first_id, position.last_id) == (ids[0], ids[199])
    assert (position.entries_added, position.length, position.tokens_added) == (200, 200, 600)


def test_reading_costs_one_command_per_page(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    """So a range that is twice as long takes twice as many commands, wherever in the stream it lies."""
    stream = make_stream()
    ids = stream.append([make_sample(number) for number in range(6_400)])
    pages = []
    for first in (0, 3_200, 4_800):
        client.config_resetstat()
        assert len(numbers(stream, ids[first], ids[first + 1_600 - 1])) == 1_599
        pages.append(client.info("commandstats")["cmdstat_xrange"]["calls"])
    client.config_resetstat()
    numbers(stream, ids[0], ids[3_200 - 1])
    assert pages == [26, 26, 26]  # 25 with samples, and one that finds nothing more
    assert client.info("commandstats")["cmdstat_xrange"]["calls"] == 51


def test_a_range_stays_the_same_while_the_stream_grows(
    make_stream: MakeStream, make_sample: MakeSample
) -> None:
    stream = make_stream()
    stream.append([make_sample(number) for number in range(100)])
    through = stream.position("default").last_id
    first = numbers(stream, None, through)
    stream.append([make_sample(number) for number in range(100, 150)])
    assert numbers(stream, None, through) == first == list(range(100))


def test_domains_are_apart(make_stream: MakeStream, make_sample: MakeSample) -> None:
    stream = make_stream()
    stream.append([make_sample(number, domain=("law", "code")[number % 2]) for number in range(10)])
    assert stream.domains() == ["code", "law"]
    assert [sample.prompt_ids[-1] for _, sample in stream.read("code", None, None)] == [1, 3, 5, 7, 9]
    assert stream.position("law").tokens_added == 15


def test_a_small_cap_is_exact(make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis) -> None:
    """Redis' approximate trimming, the wrong variant, leaves whole nodes."""
    stream = make_stream(stream_maxlen=50)
    stream.append([make_sample(number) for number in range(200)])
    assert client.xlen(KEY) == 50
    assert numbers(stream) == list(range(150, 200))

    for number in range(200):
        client.xadd("wrong", {"n": number}, maxlen=50, approximate=True)
    assert client.xlen("wrong") > 50


def test_a_stream_does_not_grow_without_end(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream(stream_maxlen=1500)
    memory = []
    for start in range(0, 8000, 500):
        stream.append([make_sample(number) for number in range(start, start + 500)])
        memory.append(client.memory_usage(KEY, samples=0) or 0)
    assert client.xlen(KEY) <= 1500 + 100
    assert max(memory[8:]) <= 1.1 * min(memory[8:])


def test_an_age_limit_drops_old_samples_and_dead_letters(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream(stream_max_age_seconds=0.5)
    client.xadd(KEY, {"sample": b"garbage"})
    stream.append([make_sample(number) for number in range(5)])
    assert len(numbers(stream)) == 5
    assert stream.dead_length("default") == 1
    time.sleep(0.7)
    stream.append([make_sample(number) for number in range(5, 8)])
    assert stream.trim_by_age("default") == 6
    assert numbers(stream) == [5, 6, 7]
    assert stream.dead_length("default") == 0
    assert make_stream().trim_by_age("default") == 0


def test_what_was_trimmed_unseen_is_counted(make_stream: MakeStream, make_sample: MakeSample) -> None:
    """A paused reader with 5 entries pending, of which traffic past the cap pushes 3 out."""
    stream = make_stream()
    stream.append([make_sample(number) for number in range(10)])
    cursor = stream.position("default")
    stream.append([make_sample(number) for number in range(10, 15)])
    before = stream.backlog("default", cursor.last_id, cursor.entries_added, cursor.tokens_added)
    assert (before.unseen, before.lost, before.new_tokens) == (5, 0, 15)

    make_stream(stream_maxlen=3).append([make_sample(15)])
    after = stream.backlog("default", cursor.last_id, cursor.entries_added, cursor.tokens_added)
    assert (after.unseen, after.lost, after.new_entries) == (3, 3, 6)
    assert numbers(stream, cursor.last_id) == [13, 14, 15]


def test_losses_are_right_in_any_order_of_events(make_stream: MakeStream, make_sample: MakeSample) -> None:
    """300 seeded steps against a model of the stream; counting by length, the wrong variant, goes red."""
    random_source = random.Random(11)
    added, cursor, cursor_length, wrong = 0, 0, 0, 0
    position = StreamPosition()
    kept = 0
    for _ in range(300):
        count, cap = random_source.randint(0, 9), random_source.choice([5, 12, 30])
        stream = make_stream(stream_maxlen=cap)
        stream.append([make_sample(added + number) for number in range(count)])
        added += count
        kept = min(kept + count, cap) if count else kept
        lost = max(0, added - kept - cursor)
        backlog = stream.backlog("default", position.last_id, position.entries_added)
        assert (backlog.lost, backlog.unseen) == (lost, added - cursor - lost)
        wrong += max(0, cursor_length - backlog.length) != lost
        if random_source.random() < 0.2:
            position, cursor = stream.position("default"), added
            cursor_length = position.length
    assert wrong > 100


def test_a_flushed_stream_is_all_new(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    stream.append([make_sample(number) for number in range(20)])
    cursor = stream.position("default")
    client.flushall()
    assert stream.backlog("default", cursor.last_id, cursor.entries_added).new_entries == 0
    stream.append([make_sample(number) for number in range(30)])
    backlog = stream.backlog("default", cursor.last_id, cursor.entries_added, cursor.tokens_added)
    assert (backlog.unseen, backlog.lost, backlog.new_tokens, backlog.restarted) == (30, 0, 90, True)


def test_duplicates_are_read_once(make_stream: MakeStream, make_sample: MakeSample) -> None:
    """An append whose answer was lost is made again; another choice of the same request is no duplicate."""
    stream = make_stream()
    stream.append([make_sample(number) for number in range(100)])
    stream.append([make_sample(number) for number in range(50)])
    stream.append([make_sample(7, choice=1)])
    tally = ReadTally()
    identities = [sample.identity for _, sample in stream.read("default", None, None, tally=tally)]
    assert len(identities) == len(set(identities)) == 101
    assert tally == ReadTally(entries=151, samples=101, duplicates=50, dead=0)


def test_a_duplicate_in_the_next_range_is_known(make_stream: MakeStream, make_sample: MakeSample) -> None:
    """A range ends between a batch and its second copy; the wrong variant, `known=0`, reads it twice."""
    stream = make_stream()
    stream.append([make_sample(n) for n in range(100)])
    cut = stream.position("default").last_id
    stream.append([make_sample(n) for n in range(90, 110)])

    def read(known: int) -> list[str]:
        return [sample.request_id for _, sample in stream.read("default", cut, None, known=known)]

    assert read(known=70) == [f"request-{n}" for n in range(100, 110)]
    assert read(known=1000) == read(known=10) == read(known=70)
    assert len(read(known=0)) == 20


def test_one_malformed_entry_does_not_block_the_others(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    stream.append([make_sample(number) for number in range(10)])
    bad = [client.xadd(KEY, {"sample": b"garbage"}), client.xadd(KEY, {"text": "hello"})]
    newer = msgpack.packb({**msgpack.unpackb(make_sample().pack()), "schema": 9})
    bad.append(client.xadd(KEY, {"sample": newer, "extra": "1"}))
    stream.append([make_sample(number) for number in range(10, 20)])

    for _ in range(5):
        assert numbers(stream) == list(range(20))
    letters = stream.dead("default")
    assert [letter.entry_id.encode() for letter in letters] == bad[::-1]
    assert [letter.sample for letter in letters] == [newer, b"", b"garbage"]
    assert "schema 9" in letters[0].reason
    assert "no field sample; its fields are: text" in letters[1].reason
    assert "not msgpack" in letters[2].reason


def test_samples_of_another_model_or_domain_are_set_aside_once(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    stream.append(
        [
            make_sample(0),
            make_sample(1, target_fingerprint="old"),
            make_sample(2, tokenizer_fingerprint="old"),
        ]
    )
    client.xadd(KEY, {"sample": make_sample(3, domain="law").pack()})
    for _ in range(2):
        read = stream.read("default", None, None, expected_target="target", expected_tokenizer="tokenizer")
        assert [sample.prompt_ids[-1] for _, sample in read] == [0]
    reasons = [letter.reason for letter in stream.dead("default")]
    assert reasons == [
        "domain is law, but this round reads default",
        "tokenizer_fingerprint is old, but this round reads tokenizer",
        "target_fingerprint is old, but this round reads target",
    ]
    assert numbers(stream) == [0, 1, 2]


def test_dead_letters_of_an_older_range_are_recorded_after_newer_ones(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    old = client.xadd(KEY, {"sample": b"old"})
    middle = stream.append([make_sample(0)])[0]
    new = client.xadd(KEY, {"sample": b"new"})
    assert numbers(stream, middle) == []
    assert numbers(stream, None, middle) == [0]
    assert numbers(stream) == [0]
    assert [letter.entry_id.encode() for letter in stream.dead("default")] == [old, new]


def test_dead_letters_are_bounded(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream(stream_maxlen=40, dead_maxlen=25)
    for number in range(200):
        client.xadd(KEY, {"sample": b"%d" % number}, maxlen=40, approximate=False)
        if number % 20 == 19:
            assert numbers(stream) == []
    assert stream.dead_length("default") == 25
    assert len(stream.dead("default", count=10)) == 10
    assert client.zcard(f"{KEY}:dead:entries") <= 200


def test_many_threads_append(make_stream: MakeStream, make_sample: MakeSample) -> None:
    stream = make_stream()

    def work(start: int) -> None:
        for number in range(start, start + 50, 10):
            stream.append([make_sample(n) for n in range(number, number + 10)])

    threads = [threading.Thread(target=work, args=(50 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers(stream)) == list(range(400))
    position = stream.position("default")
    assert (position.entries_added, position.tokens_added) == (400, 1200)


def test_a_huge_sample_goes_through(make_stream: MakeStream, make_sample: MakeSample) -> None:
    """8,192 tokens with 32 alternatives each: 1.6 MB."""
    stream = make_stream()
    sample = make_sample(0, emitted=8192, k=32)
    stream.append([sample, make_sample(1), sample.__class__.unpack(sample.pack())])
    assert numbers(stream) == [0, 1]


def test_settings_have_sane_bounds() -> None:
    assert QueueSettings().visibility_timeout_seconds > QueueSettings().round_time_limit_seconds
