"""A worker among real Redis and MLflow: samples out, champions in, and nothing there can fail a request."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from redraft_models.adapter import adaptable_linears, write_adapter
from redraft_models.registry import Registry
from redraft_ops.valkey import free_port
from redraft_queue.events import ChampionMoved, publish_champion
from redraft_queue.heartbeat import heartbeats
from redraft_queue.records import Sample
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect

pytestmark = pytest.mark.integration

Worker = Any
Start = Callable[..., Worker]
SETTINGS = QueueSettings(socket_timeout_seconds=0.5)


def wait_for(condition: Callable[[], bool], seconds: float = 45) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def samples(redis_url: str, domain: str = "default") -> list[Sample]:
    stream = SampleStream(connect(redis_url, SETTINGS), SETTINGS)
    return [sample for _, sample in stream.read(domain, None, None)]


def register(
    registry: Registry, worker: Worker, folder: Path, seed: int, domain: str = "default", **wrong: Any
) -> int:
    """Register a random adapter of the worker's draft, whole unless `wrong` says otherwise.

    The folder that it was made in is gone afterwards, as if on another machine.
    """
    draft = worker.engine.pair.draft
    assert draft is not None
    generator = torch.Generator().manual_seed(seed)
    linears = adaptable_linears(draft.module)
    tensors = {}
    for path, linear in linears.items():
        tensors[f"{path}.lora_A.weight"] = 0.1 * torch.randn((4, linear.in_features), generator=generator)
        tensors[f"{path}.lora_B.weight"] = 0.1 * torch.randn((linear.out_features, 4), generator=generator)
    if wrong.get("half"):
        tensors = dict(list(tensors.items())[: len(tensors) // 2])
    provenance = {"base_draft_fingerprint": wrong.get("base", draft.fingerprint)}
    place = folder / f"{domain}-{seed}"
    sha = write_adapter(
        place, tensors, r=4, lora_alpha=8.0, target_modules=sorted(linears), provenance=provenance
    )
    weights = place / "adapter" / "adapter_model.safetensors"
    if wrong.get("truncated"):
        weights.write_bytes(weights.read_bytes()[:500])
    if wrong.get("pickle"):
        (place / "adapter" / "adapter_model.bin").write_bytes(b"\x80\x04.")
    run_id = registry.start_run(domain, f"round {seed}", {}, {"round_id": f"{domain}-{seed}"})
    registry.log_artifacts(run_id, place, "version")
    shutil.rmtree(place)
    version = registry.register(domain, run_id, {"sha256": sha})
    registry.end_run(run_id, "FINISHED")
    return version


def serving(worker: Worker, domain: str = "default") -> Any:
    drafts = worker.http.get("/v1/drafts").json()["data"]
    return next((draft for draft in drafts if draft["domain"] == domain), None)


def test_samples_of_finished_answers(start: Start, redis_url: str) -> None:
    """One sample per choice, cut where the answer was; none where the client says `store: false`."""
    worker = start("chain", 5, config={"redis_url": redis_url})
    worker.complete("a", max_tokens=20, n=2)
    worker.complete("a", store=False)
    worker.complete("b", stop="d")
    wait_for(lambda: worker.metric("redraft_samples_written_total") == 3)
    first, second, third = samples(redis_url)
    assert first.identity != second.identity
    assert first.request_id == second.request_id
    assert (len(first.output_ids), first.finish_reason) == (4, "stop")
    assert first.output_ids[-1] in worker.engine.pair.eos_token_ids
    assert len(third.output_ids) == 1
    assert set(first.outcome) <= {"accepted", "bonus", "corrected", "plain"}
    signs = connect(redis_url, SETTINGS)
    wait_for(lambda: [sign.role for sign in heartbeats(signs)] == ["load", "serving"])


def test_domains_have_streams_of_their_own(start: Start, redis_url: str) -> None:
    worker = start("chain", config={"redis_url": redis_url})
    worker.http.headers["X-Redraft-Domain"] = "law"
    assert worker.complete("a")["metrics"]["speculative_decoding"]["domain"] == "law"
    wait_for(lambda: len(samples(redis_url, "law")) == 1)
    assert samples(redis_url) == []


def test_redis_and_mlflow_away(start: Start) -> None:
    """Closed ports everywhere: the worker starts on the base draft within seconds and serves."""
    port = free_port()
    config = {"redis_url": f"redis://127.0.0.1:{port}/0", "tracking_uri": f"http://127.0.0.1:{port}"}
    started = time.monotonic()
    worker = start("chain", config=config, capture_buffer=5, registry_start_seconds=3)
    assert time.monotonic() - started < 20
    for _ in range(20):
        assert worker.complete("a")["choices"][0]["text"] == "b c d"
    assert worker.metric("redraft_samples_dropped_total") == 15
    assert serving(worker)["version"] == "base"


@pytest.mark.usefixtures("hasty_store")
def test_a_registry_that_does_not_answer_and_comes_back(
    start: Start, tracking_uri: str, tmp_path: Path
) -> None:
    """Held at the start: ready on the base draft. Answering: its champion. Held again: that champion."""
    registry = Registry(tracking_uri)
    maker = start("random")
    version = register(registry, maker, tmp_path, 1)
    registry.promote("default", version)
    text = maker.complete("w1 w2", max_tokens=30)["choices"][0]["text"]

    def twenty_answers(worker: Worker, version: int | str) -> None:
        for _ in range(20):
            asked = time.monotonic()
            body = worker.complete("w1 w2", max_tokens=30)
            assert time.monotonic() - asked < 2, "the registry is asked off the request path"
            assert body["choices"][0]["text"] == text
            assert body["metrics"]["speculative_decoding"]["draft_version"] == version

    with held(tracking_uri):
        began = time.monotonic()
        worker = start("random", config={"tracking_uri": tracking_uri}, registry_start_seconds=1)
        assert time.monotonic() - began < 30
        twenty_answers(worker, "base")
    wait_for(lambda: serving(worker)["version"] == version)
    with held(tracking_uri):
        twenty_answers(worker, version)
    assert serving(worker)["version"] == version


@contextmanager
def held(tracking_uri: str) -> Iterator[None]:
    """The registry's database, locked by somebody."""
    database = sqlite3.connect(tracking_uri.removeprefix("sqlite:///"), timeout=10)
    database.execute("BEGIN EXCLUSIVE")
    yield
    database.rollback()
    database.close()


def test_champions_come_and_go(start: Start, tracking_uri: str, tmp_path: Path) -> None:
    """A champion is swapped in and read back; rotten ones are refused and tagged; text never changes."""
    registry = Registry(tracking_uri)
    worker = start("random", config={"tracking_uri": tracking_uri})
    text = worker.complete("w1 w2", max_tokens=40)["choices"][0]["text"]

    def same_text() -> bool:
        return bool(worker.complete("w1 w2", max_tokens=40)["choices"][0]["text"] == text)

    base = serving(worker)["checksum"]
    first = register(registry, worker, tmp_path, 1)
    registry.promote("default", first)
    wait_for(lambda: serving(worker)["version"] == first)
    found = serving(worker)
    assert (found["adapter"]["r"], found["adapter"]["lora_alpha"]) == (4, 8.0)
    assert found["checksum"] != base
    assert worker.complete("w1", max_tokens=8)["metrics"]["speculative_decoding"]["draft_version"] == first
    assert same_text()

    faults = ({"base": "another"}, {"truncated": True}, {"pickle": True}, {"half": True})
    for seed, wrong in enumerate(faults, start=2):
        rotten = register(registry, worker, tmp_path, seed, **wrong)
        registry.promote("default", rotten)
        wait_for(lambda v=rotten: registry.version("default", v).validation_status == "rejected")  # type: ignore[misc]
        assert "refused" in registry.version("default", rotten).tags["decision_reason"]
        assert serving(worker)["version"] == first
        assert same_text()
    assert worker.metric("redraft_swaps_total") == 5

    registry._client.delete_registered_model_alias("redraft-default", "champion")
    time.sleep(1)
    assert serving(worker)["version"] == first
    registry.rollback("default", to=0)
    wait_for(lambda: serving(worker)["version"] == "base")
    assert serving(worker)["adapter"] is None
    assert same_text()


def test_a_candidate_is_not_served_whatever_its_tags_claim(
    start: Start, tracking_uri: str, tmp_path: Path
) -> None:
    """The alias of the candidate moves nothing; only the gate's word does."""
    registry = Registry(tracking_uri)
    worker = start("random", config={"tracking_uri": tracking_uri})
    first, second = (register(registry, worker, tmp_path, seed) for seed in (1, 2))
    registry.promote("default", first)
    wait_for(lambda: serving(worker)["version"] == first)
    registry.set_tags("default", second, {"acceptance_rate": "0.99", "gain": "0.5"})
    registry._client.set_registered_model_alias("redraft-default", "challenger", str(second))
    time.sleep(1)
    assert serving(worker)["version"] == first
    assert worker.metric("redraft_swaps_total") == 1


def test_news_of_a_champion_is_faster_than_the_poll(
    start: Start, tracking_uri: str, redis_url: str, tmp_path: Path
) -> None:
    registry = Registry(tracking_uri)
    config = {"tracking_uri": tracking_uri, "redis_url": redis_url}
    worker = start("random", config=config, poll_seconds=600)
    version = register(registry, worker, tmp_path, 1)
    registry.promote("default", version)
    client = connect(redis_url, SETTINGS)
    assert serving(worker)["version"] == "base"
    wait_for(lambda: publish_champion(client, ChampionMoved("default", version)) > 0)
    wait_for(lambda: serving(worker)["version"] == version)


def test_a_version_that_is_not_ready_is_waited_for(start: Start, tracking_uri: str, tmp_path: Path) -> None:
    registry = Registry(tracking_uri)
    worker = start("random", config={"tracking_uri": tracking_uri})
    version = register(registry, worker, tmp_path, 1)
    registry.promote("default", version)
    wait_for(lambda: serving(worker)["version"] == version)
    second = register(registry, worker, tmp_path, 2)
    set_status = "UPDATE model_versions SET status = ? WHERE version = ?"
    with sqlite3.connect(tracking_uri.removeprefix("sqlite:///")) as database:
        database.execute(set_status, ("PENDING_REGISTRATION", second))
    database.close()
    registry._client.set_registered_model_alias("redraft-default", "champion", str(second))
    time.sleep(1)
    assert serving(worker)["version"] == version
    with sqlite3.connect(tracking_uri.removeprefix("sqlite:///")) as database:
        database.execute(set_status, ("READY", second))
    database.close()
    wait_for(lambda: serving(worker)["version"] == second)
