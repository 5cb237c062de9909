"""Deleting what was asked to be forgotten, on a real server."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgpack
import pytest
import redis
from redraft_queue import forget, keys
from redraft_queue.dead_letters import DeadLetter, DeadLetters
from redraft_queue.errors import StreamUnavailable
from redraft_queue.forget import IdRange, forget_domain, forget_request, forget_user
from redraft_queue.positions import StreamPosition, backlog_at, id_key
from redraft_queue.records import Sample, user_hash
from redraft_queue.stream import SampleStream

MakeSample = Callable[..., Sample]
MakeStream = Callable[..., SampleStream]
ANN, BOB = user_hash("ann"), user_hash("bob")


def left(stream: SampleStream, domain: str = "default") -> list[int]:
    return [sample.prompt_ids[-1] for _, sample in stream.read(domain, None, None)]


def test_a_request_goes_with_all_its_choices_and_copies(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    samples = [make_sample(number, request_id=f"r{number // 2}", choice=number % 2) for number in range(200)]
    ids = stream.append([*samples, samples[6]])
    done = forget_request(client, "default", "r3")
    assert (done.samples, done.dead_letters) == (3, 0)
    assert done.ranges == [IdRange(ids[6], ids[7], 2), IdRange(ids[200], ids[200], 1)]
    assert left(stream) == [n for n in range(200) if n not in (6, 7)]
    assert forget_request(client, "default", "r3").to_dict() == {
        "domain": "default",
        "samples": 0,
        "dead_letters": 0,
        "ranges": [],
    }
    assert forget_request(client, "default", "r").samples == 0  # the beginning of many


def test_a_user_goes_and_others_stay(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    users = (ANN, BOB, None)
    stream.append([make_sample(number, user=users[number % 3]) for number in range(300)])
    assert forget_user(client, "default", ANN).samples == 100
    assert left(stream) == [number for number in range(300) if number % 3]
    assert forget_user(client, "default", BOB).samples == 100


def test_entries_that_can_not_be_read_go_too(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    """Garbage with the name in it, another schema, a cut-off one, and a name that stands in another field."""
    stream = make_stream()
    packed = make_sample(1, request_id="secret-1", user=ANN).pack()
    document = msgpack.unpackb(packed)
    other = {**document, "request_id": "other", "finish_reason": "secret-1"}
    entries = [
        packed[:60],
        msgpack.packb({**document, "schema": 9}),
        b"garbage secret-1",
        msgpack.packb(other),
    ]
    for entry in entries:
        client.xadd(keys.samples("default"), {"sample": entry})
    client.xadd(keys.samples("default"), {"another": b"secret-1"})
    assert left(stream) == [1]  # reading makes four dead letters
    assert stream.dead_length("default") == 4
    done = forget_request(client, "default", "secret-1")
    assert (done.samples, done.dead_letters) == (3, 3)
    assert stream.dead_length("default") == 1
    assert left(stream) == [1]
    assert b"secret-1" not in b"".join(letter.sample for letter in stream.dead("default"))


def test_dead_letters_of_trimmed_and_cut_off_entries_go(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    """The entry is long gone, and of 400 kB only the first 64 are kept: the field stands at the start."""
    long = make_sample(1, emitted=4_000, k=16, request_id="r-long", user=ANN)
    letters = [
        DeadLetter("1-0", "too long", long.pack()),
        DeadLetter("2-0", "somebody else", make_sample(2, user=BOB).pack()),
    ]
    assert len(long.pack()) > 300_000
    DeadLetters(client, 100).record("default", letters)
    assert forget_user(client, "default", ANN).dead_letters == 1
    assert [letter.entry_id for letter in make_stream().dead("default")] == ["2-0"]
    assert client.zrange(keys.dead_entries("default"), 0, -1) == [b"2-0"]


def test_a_deletion_that_was_cut_off_is_finished_by_the_next(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    """Of an entry of another target only id and reason are kept: its letter is found by the deleted id."""
    stream = make_stream()
    stream.append([make_sample(number) for number in range(3)])
    assert list(stream.read("default", None, None, expected_target="another")) == []
    assert stream.dead_length("default") == 3
    match, done = forget._Match("request_id", "request-1"), forget.Forgotten("default")
    forget._forget_samples(client, "default", match, done)  # and the process dies
    assert stream.dead_length("default") == 3
    again = forget_request(client, "default", "request-1")
    assert (again.samples, again.dead_letters) == (0, 1)


def test_what_was_deleted_is_not_lost(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    stream.append([make_sample(number, user=ANN if number < 4 else BOB) for number in range(10)])
    cursor = stream.position("default")
    stream.append([make_sample(number, user=(ANN, BOB)[number % 2]) for number in range(10, 20)])
    forget_user(client, "default", ANN)
    backlog = stream.backlog("default", cursor.last_id, cursor.entries_added, cursor.tokens_added)
    assert (backlog.unseen, backlog.lost, backlog.restarted) == (5, 0, False)
    assert stream.backlog("default", None, 0).lost == 0

    blind = backlog_at(stream.position("default"), cursor.last_id, cursor.entries_added)
    assert blind.unseen == 10  # the wrong variant: five of them are not there
    forget_user(client, "default", BOB)
    assert stream.backlog("default", cursor.last_id, cursor.entries_added).new_entries == 0
    assert backlog_at(stream.position("default"), cursor.last_id, cursor.entries_added).lost == 10


def test_losses_are_right_in_any_order_of_appends_trims_cursors_and_deletions(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    """60 seeded histories against a count by hand."""
    source = random.Random(4)
    for _ in range(60):
        client.flushall()
        alive: list[tuple[str, str]] = []
        cursor, behind, deleted = StreamPosition(), 0, set[str]()
        for number in range(source.randint(3, 12)):
            move = source.choice(("append", "append", "trim", "cursor", "forget"))
            if move == "append":
                users = [source.choice((ANN, BOB)) for _ in range(source.randint(1, 8))]
                ids = make_stream().append([make_sample(number, user=user) for user in users])
                alive += zip(ids, users, strict=True)
                behind += len(ids)
            elif move == "trim" and alive:
                keep = source.randint(0, len(alive))
                client.xtrim(keys.samples("default"), maxlen=keep, approximate=False)
                alive = alive[len(alive) - keep :]
            elif move == "cursor":
                cursor, behind, deleted = make_stream().position("default"), 0, set()
            elif move == "forget":
                user = source.choice((ANN, BOB))
                forget_user(client, "default", user)
                gone = {entry for entry, owner in alive if owner == user}
                after = (0, 0) if cursor.last_id is None else id_key(cursor.last_id)
                deleted |= {entry for entry in gone if id_key(entry) > after}
                alive = [pair for pair in alive if pair[0] not in gone]
        after = (0, 0) if cursor.last_id is None else id_key(cursor.last_id)
        unseen = sum(id_key(entry) > after for entry, _ in alive)
        found = make_stream().backlog("default", cursor.last_id, cursor.entries_added, cursor.tokens_added)
        assert (found.unseen, found.lost) == (unseen, behind - unseen - len(deleted))
        assert not found.restarted


def test_a_forgotten_domain_begins_anew(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis
) -> None:
    stream = make_stream()
    ids = stream.append([make_sample(number, domain="law") for number in range(100)])
    stream.append([make_sample(number) for number in range(5)])
    client.xadd(keys.samples("law"), {"sample": b"garbage"})
    assert len(left(stream, "law")) == 100
    forget_request(client, "law", "request-7")
    client.hset(keys.schedule("law"), "asked_ms", "5")
    cursor = stream.position("law")

    done = forget_domain(client, "law")
    assert (done.samples, done.dead_letters, done.ranges[0].first_id) == (100, 1, ids[0])
    assert client.keys("redraft:*law*") == []
    assert (stream.domains(), left(stream)) == (["default"], list(range(5)))
    assert forget_domain(client, "law").samples == 0

    stream.append([make_sample(number, domain="law") for number in range(3)])
    backlog = stream.backlog("law", cursor.last_id, cursor.entries_added, cursor.tokens_added)
    assert (backlog.unseen, backlog.lost, backlog.restarted, backlog.new_tokens) == (3, 0, True, 9)


def test_many_scattered_deletions_stay_bounded(
    make_stream: MakeStream, make_sample: MakeSample, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget, "_MOST_RANGES", 3)
    ids = make_stream().append([make_sample(number, user=(ANN, BOB)[number % 2]) for number in range(100)])
    ranges = forget_user(client, "default", ANN).ranges
    assert [found.samples for found in ranges] == [1, 1, 48]
    assert ranges[-1].last_id == ids[98]


def test_a_server_that_is_away_is_one_error() -> None:
    nobody = redis.Redis(port=1, socket_timeout=0.2)
    for call in (forget_request, forget_user):
        with pytest.raises(StreamUnavailable, match="forget samples of domain law"):
            call(nobody, "law", "x")
    with pytest.raises(StreamUnavailable):
        forget_domain(nobody, "law")
