"""The Sample on the wire."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from redraft_queue.records import (
    OUTCOMES,
    Sample,
    Sampling,
    UnreadableSample,
    bytes_to_ids,
    ids_to_bytes,
    user_hash,
)

MakeSample = Callable[..., Sample]


def full(make_sample: MakeSample) -> Sample:
    return make_sample(
        7,
        emitted=4,
        choice=2,
        sampling=Sampling(
            temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, presence_penalty=0.5, has_logit_bias=True
        ),
        draft_version=(("base", 3), (12, 1)),
        outcome=OUTCOMES,
        drafted_id=(10, 99, -1, -1),
        finish_reason="length",
        queue_seconds=0.25,
        prefill_seconds=0.5,
        decode_seconds=1.5,
        rounds=4,
        proposed=12,
        tested=6,
    )


def altered(sample: Sample, **changes: Any) -> bytes:
    """The packed sample with some fields of its map replaced; a change to `...` removes the field."""
    document = {**msgpack.unpackb(sample.pack()), **changes}
    packed: bytes = msgpack.packb({name: value for name, value in document.items() if value is not ...})
    return packed


def test_a_sample_survives_the_wire(make_sample: MakeSample) -> None:
    for sample in (make_sample(), full(make_sample)):
        assert Sample.unpack(sample.pack()) == sample


def test_the_wire_is_little_endian_and_views_as_arrays(make_sample: MakeSample) -> None:
    document = msgpack.unpackb(full(make_sample).pack())
    assert document["schema"] == 2
    assert document["prompt_ids"] == struct.pack("<3i", 1, 2, 7)
    assert document["outcome"] == bytes([0, 1, 2, 3])
    assert document["draft_version"] == [["base", 3], [12, 1]]
    law = np.frombuffer(document["topk_logprobs"], "<f2").reshape(4, document["top_k_logged"])
    assert np.allclose(law, [[-0.693, -1.386]] * 4, atol=1e-3)


def test_ids_and_bytes_are_inverse() -> None:
    ids = (0, 1, 49151, 2**31 - 1, -1)
    assert bytes_to_ids(ids_to_bytes(ids)) == ids
    with pytest.raises(ValueError, match="int32"):
        ids_to_bytes([2**31])


def test_what_another_engine_need_not_tell(make_sample: MakeSample) -> None:
    optional = (
        "outcome",
        "drafted_id",
        "sampling",
        "draft_version",
        "choice",
        "rounds",
        "proposed",
        "tested",
    )
    sample = Sample.unpack(altered(full(make_sample), **dict.fromkeys(optional, ...)))
    assert (sample.outcome, sample.drafted_id, sample.sampling, sample.choice) == ((), (), Sampling(), 0)
    assert sample.accepted == 0


def test_an_entry_of_the_schema_before_has_no_user(make_sample: MakeSample) -> None:
    whole = make_sample(user=user_hash("ann"))
    assert Sample.unpack(whole.pack()).user == whole.user
    older = Sample.unpack(altered(whole, schema=1, user=...))
    assert older == make_sample()
    assert older.user is None
    assert Sample.unpack(altered(whole, user=None)).user is None
    assert "user" not in msgpack.unpackb(make_sample().pack())
    with pytest.raises(UnreadableSample, match="user is a int"):
        Sample.unpack(altered(whole, user=5))


def test_what_an_entry_is_looked_for_by_stands_first(make_sample: MakeSample) -> None:
    """Of an entry that can't be read, the dead letters keep the start alone."""
    assert list(msgpack.unpackb(make_sample(user="u").pack()))[:2] == ["request_id", "user"]


def test_a_users_hash_is_the_same_everywhere() -> None:
    assert user_hash("ann") == "d8963d899008cf8c05369be7b9042715"
    assert user_hash("ann") != user_hash("Ann")
    assert len(user_hash("\ud800")) == 32  # what JSON can say and UTF-8 can't


def test_unknown_keys_of_the_same_schema_are_ignored(make_sample: MakeSample) -> None:
    assert Sample.unpack(altered(make_sample(), newer_field=[1, {"a": 2}])) == make_sample()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": 3}, "schema 3 is none of"),
        ({"schema": True}, "schema True is none of"),
        ({"schema": [1]}, "is none of"),
        ({"schema": ...}, "schema None"),
        ({"request_id": ...}, "request_id is missing"),
        ({"request_id": 5}, "request_id is a int"),
        ({"created_ms": -1}, "created_ms"),
        ({"created_ms": True}, "created_ms"),
        ({"output_ids": [1, 2, 3]}, "output_ids is a list"),
        ({"output_ids": b"\x01\x00\x00"}, "no multiple of 4"),
        ({"output_ids": b""}, "must not be empty"),
        ({"prompt_ids": b""}, "must not be empty"),
        ({"top_k_logged": 0}, "must not be empty"),
        ({"output_ids": struct.pack("<2i", 1, 2)}, "topk_ids has length"),
        ({"prompt_ids": struct.pack("<2i", 1, -2)}, "prompt_ids holds the id -2"),
        ({"drafted_id": struct.pack("<3i", 1, -1, -2)}, "drafted_id holds the id -2"),
        ({"drafted_id": struct.pack("<2i", 1, -1)}, "drafted_id has length 2"),
        ({"topk_ids": struct.pack("<6i", 0, 1, 2, 3, -4, 5)}, "topk_ids holds the id -4"),
        ({"topk_logprobs": struct.pack("<6e", *[-1.0] * 5, float("nan"))}, "no log-probability"),
        ({"topk_logprobs": struct.pack("<6e", *[-1.0] * 5, 0.5)}, "no log-probability"),
        ({"tail_mass": struct.pack("<3e", 0.1, 0.1, 1.5)}, "no probability"),
        ({"tail_mass": struct.pack("<3e", 0.1, 0.1, -0.5)}, "no probability"),
        ({"tail_mass": struct.pack("<3e", 0.1, 0.1, float("nan"))}, "no probability"),
        ({"outcome": bytes([0, 1, 4])}, "code 4"),
        ({"outcome": bytes([0, 1])}, "outcome has length 2"),
        ({"outcome": "my secret"}, "^outcome is a str, but bytes was expected$"),
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"temperature": "hot"}}, "temperature is a str"),
        ({"sampling": {"temperature": -1.0}}, "temperature is -1, but a number from 0"),
        ({"sampling": {"temperature": 1e300}}, "temperature is 1e"),
        ({"sampling": {"top_p": 1.5}}, "top_p is 1.5"),
        ({"sampling": {"top_k": 2**40}}, "top_k is"),
        ({"sampling": {"min_p": 2.0}}, "min_p is 2"),
        ({"sampling": {"has_logit_bias": 1}}, "has_logit_bias"),
        ({"sampling": []}, "sampling is a list"),
        ({"draft_version": [["base"]]}, "draft_version"),
        ({"draft_version": [[1.5, 2]]}, "draft_version"),
        ({"rounds": "many"}, "rounds is a str"),
        ({"decode_seconds": float("inf")}, "decode_seconds"),
    ],
)
def test_what_is_no_sample_is_named(make_sample: MakeSample, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnreadableSample, match=reason) as raised:
        Sample.unpack(altered(make_sample(), **changes))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "data", [b"", b"garbage", msgpack.packb([1]), msgpack.packb(None), b"\xc1", b"\x91" * 5000]
)
def test_what_is_no_map_is_named(data: bytes) -> None:
    with pytest.raises(UnreadableSample):
        Sample.unpack(data)


def test_an_impossible_token_and_a_rounded_law_are_readable(make_sample: MakeSample) -> None:
    law = struct.pack("<6e", 0.0, float("-inf"), 0.0005, -20.0, -0.0, -65504.0)
    tail = struct.pack("<3e", -0.0004, 0.0, 1.0)
    assert Sample.unpack(altered(make_sample(), topk_logprobs=law, tail_mass=tail)).topk_logprobs == law


def test_damage_never_raises_anything_else(make_sample: MakeSample) -> None:
    """3,000 seeded mutations: a reader meets a Sample or UnreadableSample, nothing else."""
    random_source = random.Random(5)
    packed = full(make_sample).pack()
    unreadable = 0
    for _ in range(3000):
        data = bytearray(packed)
        for _ in range(random_source.randint(1, 4)):
            data[random_source.randrange(len(data))] = random_source.randrange(256)
        damaged = bytes(data[: random_source.choice([len(data), random_source.randrange(len(data))])])
        try:
            Sample.unpack(damaged)
        except UnreadableSample:
            unreadable += 1
    assert unreadable > 1500


def test_the_split_depends_on_the_prompt_alone(make_sample: MakeSample) -> None:
    one, again = make_sample(3), make_sample(3, request_id="other", domain="elsewhere", emitted=9)
    assert one.prompt_hash == again.prompt_hash != make_sample(4).prompt_hash
    assert make_sample(0).prompt_hash == 12084830731585571042, (
        "a version that hashes otherwise leaks held-out prompts"
    )


def test_the_split_is_even(make_sample: MakeSample) -> None:
    """20 % of 4,000 prompts: 800, standard deviation 25; deterministic, so there is no false alarm."""
    held_out = sum(make_sample(number).prompt_hash % 100 < 20 for number in range(4000))
    assert 700 < held_out < 900


@pytest.mark.parametrize(
    ("sampling", "reproducible"),
    [
        (Sampling(temperature=0.3, top_p=0.5, top_k=7, min_p=0.1), True),
        (Sampling(presence_penalty=0.1), False),
        (Sampling(frequency_penalty=-0.1), False),
        (Sampling(repetition_penalty=1.1), False),
        (Sampling(has_logit_bias=True), False),
    ],
)
def test_penalties_and_bias_are_not_reproducible(sampling: Sampling, reproducible: bool) -> None:
    assert sampling.reproducible is reproducible


def test_the_records_import_nothing_heavy() -> None:
    code = (
        "import sys, redraft_queue.records; "
        "heavy = {'numpy', 'torch', 'redis', 'celery', 'pydantic', 'mlflow'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
