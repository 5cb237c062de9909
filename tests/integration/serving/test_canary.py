"""Canary and watch over two workers, a real Redis and a real MLflow: who becomes champion, and who goes back.

Traffic is random text of a toy pair at temperature 1; adapters are random, so their spread says how bad a
draft is. No request may fail in any of it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redraft_models.errors import RegistryUnavailable
from redraft_models.loading import ModelPair, load_pair
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_queue.stream import connect
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.engine.interface import CHALLENGER, PREVIOUS

from .canary_members import QUEUE, QUICK, Member, make_member, register, tag, until, wait_for

pytestmark = pytest.mark.integration
BAD, RUIN = 0.15, 1.0


@pytest.fixture(scope="module")
def pair(pairs: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    target, draft = pairs("random")
    settings = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=256)
    return load_pair(settings, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def registry(tracking_uri: str) -> Registry:
    return Registry(tracking_uri)


@pytest.fixture
def member(
    pair: ModelPair, registry: Registry, redis_url: str, tmp_path: Path
) -> Iterator[Callable[..., Member]]:
    with ExitStack() as cleanup:
        yield lambda **more: make_member(
            pair,
            more.pop("registry", registry),
            more.pop("redis_url", redis_url),
            tmp_path,
            cleanup,
            **more,
        )


@pytest.fixture
def version(pair: ModelPair, registry: Registry, tmp_path: Path) -> Callable[..., int]:
    return lambda spread, **more: register(registry, pair, tmp_path, spread, **more)


def arms(member: Member, domain: str = "default") -> set[Any]:
    return {draft.arm for draft in member.engine.statistics().drafts if draft.domain == domain}


def test_a_better_challenger_becomes_champion_everywhere(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    first = version(BAD)
    registry.promote("default", first)
    workers = [member(), member()]
    assert [worker.version() for worker in workers] == [first, first]
    second = version(0.0, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: all(dict(worker.watcher.challengers) == {"default": second} for worker in workers))
    assert [worker.version() for worker in workers] == [first, first]
    until(lambda: all(worker.version() == second for worker in workers), workers)
    assert tag(registry, second, "canary") == "passed"
    assert tag(registry, second, "validation_status") == "approved"
    assert int(tag(registry, second, "canary_requests") or 0) >= QUICK.min_requests
    better, worse = (tag(registry, second, f"canary_{name}acceptance_rate") for name in ("", "against_"))
    assert float(better or 0) > float(worse or 1)
    until(lambda: all(arms(worker) == {"champion", "previous"} for worker in workers), workers)
    for worker in workers:
        card = worker.trials.card("default")
        assert card is not None
        assert (card["kind"], card["version"], card["against"]) == ("watch", second, first)


def test_a_much_worse_challenger_is_rejected_with_its_numbers(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    first = version(0.0)
    registry.promote("default", first)
    workers = [member(), member()]
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    until(lambda: tag(registry, second, "validation_status") == "rejected", workers)
    assert tag(registry, second, "canary") == "failed"
    reason = tag(registry, second, "decision_reason") or ""
    assert reason.startswith("It is surely accepted less than the champion: acceptance 0.")
    assert float(tag(registry, second, "canary_acceptance_difference_high") or 0) < 0
    assert registry.champion("default").version == first  # type: ignore[union-attr]
    wait_for(lambda: not any(CHALLENGER in arms(worker) for worker in workers))
    assert [worker.version() for worker in workers] == [first, first]


def test_a_bad_champion_is_rolled_back_by_the_watch(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """Promoted by hand, past the canary: the control share shows that the version before was better."""
    first, second = version(0.0), version(RUIN)
    registry.promote("default", first)
    workers = [member(), member()]
    registry.promote("default", second)
    wait_for(lambda: all(worker.version() == second for worker in workers))
    until(lambda: all(worker.version() == first for worker in workers), workers)
    reason = tag(registry, second, "rollback_reason") or ""
    assert reason.startswith("It is accepted less than the version before: acceptance 0.")
    assert tag(registry, second, "watch_against") == str(first)
    assert registry.champion("default").version == first  # type: ignore[union-attr]
    assert tag(registry, first, "rollback_reason") is None


def test_a_rollback_that_died_half_way_is_finished(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """Its deciding worker had moved `champion` back, but not yet `previous`."""
    first, second = version(0.0), version(BAD)
    registry.promote("default", first)
    registry.promote("default", second)
    registry._point("default", registry.aliases.champion, first)
    worker = member()
    wait_for(lambda: registry.alias("default", registry.aliases.previous) is None)
    assert worker.version() == first
    wait_for(lambda: (worker.trials.card("default") or {}).get("against") == "base")


def test_a_promotion_that_is_half_way_is_left_to_whoever_makes_it(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """It has moved `previous`, and is about to move `champion`: both name one version, as after a rollback
    that died."""
    first, second, third = version(BAD), version(0.0), version(0.0)
    registry.promote("default", first)
    registry.promote("default", second)
    worker = member()
    assert worker.version() == second
    registry._point("default", registry.aliases.previous, second)
    time.sleep(1.0)  # several looks
    registry._point("default", registry.aliases.champion, third)
    wait_for(lambda: worker.version() == third)
    assert registry.alias("default", registry.aliases.previous).version == second  # type: ignore[union-attr]


def test_a_version_promoted_again_is_not_judged_by_what_it_did_before(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry, redis_url: str
) -> None:
    first, second = version(0.0), version(RUIN)
    registry.promote("default", first)
    workers = [member(), member()]
    registry.promote("default", second)
    wait_for(lambda: all(worker.version() == second for worker in workers))
    until(lambda: all(worker.version() == first for worker in workers), workers)
    registry.promote("default", second)
    wait_for(lambda: all(worker.version() == second for worker in workers))

    def watched(worker: Member) -> bool:
        card = worker.trials.card("default") or {}
        return (card.get("version"), card.get("against")) == (second, first)

    wait_for(lambda: all(map(watched, workers)))
    time.sleep(3.0)  # several looks at the watch, and no traffic
    assert registry.champion("default").version == second  # type: ignore[union-attr]


def test_a_worker_that_starts_beside_a_rotten_champion_begins_with_the_version_before(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    first, second = version(0.0), version(0.0, whole=False)
    registry.promote("default", first)
    registry.promote("default", second)
    worker = member()
    wait_for(lambda: worker.version() == first, 15)
    assert tag(registry, second, "validation_status") == "rejected"
    assert tag(registry, first, "validation_status") == "approved"
    third = version(0.0, parent=second)
    registry.promote("default", third)
    wait_for(lambda: worker.version() == third, 15)


class OneBroken(Registry):
    """MLflow answers 500 for the files of one domain."""

    def download(self, domain: str, *rest: Any, **more: Any) -> Path:
        if domain == "broken":
            raise RegistryUnavailable("MLflow could not download it: 500 Server Error")
        return super().download(domain, *rest, **more)


def test_a_domain_whose_files_cannot_be_had_does_not_keep_others_from_theirs(
    member: Callable[..., Member], version: Callable[..., int], tracking_uri: str
) -> None:
    registry = OneBroken(tracking_uri)
    for domain in ("broken", "law"):
        registry.promote(domain, version(0.0, domain=domain))
    worker = member(registry=registry, domains=("broken", "law"))
    wait_for(lambda: worker.version("law") == 1, 15)
    assert worker.version("broken") == "base"


def test_a_worker_that_dies_in_a_canary_leaves_its_evidence(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """Its successor takes the canary up again; slow settings keep it open meanwhile."""
    open_long = QUICK.model_copy(update={"min_requests": 10_000})
    first = version(0.0)
    registry.promote("default", first)
    worker = member(settings=open_long)
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.watcher.challengers != {})
    for _ in range(10):
        worker.ask()
    seen = int(worker.trials.card("default")["arms"]["challenger"]["requests"])  # type: ignore[index]
    worker.watcher.stop()
    worker.engine.stop()
    successor = member(settings=open_long)
    wait_for(lambda: successor.watcher.challengers == {"default": second})

    def found() -> int:
        card = successor.trials.card("default")
        return 0 if card is None else int(card["arms"]["challenger"]["requests"])

    wait_for(lambda: found() >= seen > 0)
    successor.ask(requests=8)
    wait_for(lambda: found() > seen)


def test_a_canary_is_found_without_its_alias(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    first = version(0.0)
    registry.promote("default", first)
    worker = member()
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    registry._drop_alias("default", registry.aliases.challenger)
    wait_for(lambda: worker.watcher.challengers == {"default": second})
    until(lambda: tag(registry, second, "canary") == "failed", [worker])


def test_redis_away_decides_nothing_and_serves_on(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry, redis_url: str
) -> None:
    first = version(0.0)
    registry.promote("default", first)
    worker = member()
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.watcher.challengers != {})
    paused = time.monotonic()
    connect(redis_url, QUEUE).execute_command("CLIENT", "PAUSE", 8000, "ALL")
    while time.monotonic() < paused + 6:
        worker.ask()
    assert worker.failed == []
    assert tag(registry, second, "canary") == "running"
    assert arms(worker) == {"champion", "challenger"}
    until(lambda: tag(registry, second, "canary") == "failed", [worker])


def test_the_registry_away_decides_nothing_and_serves_on(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry, tracking_uri: str
) -> None:
    """Somebody holds MLflow's database; the worker's reads give up after half a second."""
    first = version(0.0)
    registry.promote("default", first)
    worker = member(registry=Registry(tracking_uri, timeout_seconds=0.5))
    second = version(RUIN, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.watcher.challengers != {})
    database = sqlite3.connect(tracking_uri.removeprefix("sqlite:///"), timeout=10)
    database.execute("BEGIN EXCLUSIVE")
    held = time.monotonic()
    while time.monotonic() < held + 4:
        worker.ask()
    assert worker.failed == []
    assert arms(worker) == {"champion", "challenger"}
    database.rollback()
    database.close()
    until(lambda: tag(registry, second, "canary") == "failed", [worker])
    assert worker.version() == first


@pytest.mark.parametrize("redis", [True, False])
def test_without_a_share_the_gate_alone_decides(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry, redis: bool
) -> None:
    """A canary that was begun under other settings is promoted at once; no watch runs either."""
    first = version(0.0)
    registry.promote("default", first)
    off = CanarySettings(share=0, watch_share=0)
    worker = member(settings=off, **({} if redis else {"redis_url": None}))
    second = version(BAD, parent=first)
    registry.settle("default", second, canary=True)
    wait_for(lambda: worker.version() == second)
    assert tag(registry, second, "canary") == "passed"
    assert arms(worker) == {"champion"}


def test_a_rotten_challenger_is_rejected_with_the_reason(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    first = version(0.0)
    registry.promote("default", first)
    worker = member()
    second = version(0.0, parent=first, whole=False)
    registry.settle("default", second, canary=True)
    until(lambda: tag(registry, second, "validation_status") == "rejected", [worker])
    assert "A serving worker refused it" in (tag(registry, second, "decision_reason") or "")
    assert tag(registry, second, "canary") == "failed"
    assert worker.version() == first
    assert worker.watcher.counts["default", "rejected"] == 1


def test_an_overdue_canary_stays_out(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    first = version(0.0)
    registry.promote("default", first)
    worker = member(settings=QUICK.model_copy(update={"max_seconds": 1.0, "min_requests": 10_000}))
    second = version(0.0, parent=first)
    registry.settle("default", second, canary=True)
    until(lambda: tag(registry, second, "canary") == "undecided", [worker])
    assert tag(registry, second, "validation_status") == "rejected"
    assert worker.version() == first


def test_new_domains_and_shared_drafts(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """A new domain begins with a copy as its own version; one that shares serves the other's number."""
    first, second = version(0.0), version(BAD)
    registry.promote("default", second)
    worker = member(domains=("default", "law", "faq"), adopt_from="default", shared_drafts={"faq": "default"})
    wait_for(lambda: worker.watcher.serving == {"default": second, "law": 1, "faq": second})
    assert tag(registry, 1, "adopted_from", "law") == f"redraft-default/{second}"
    assert registry.champion("faq") is None
    for domain in ("default", "law", "faq"):
        worker.ask(domain)
    checksums = {draft.checksum for draft in worker.engine.statistics().drafts if draft.arm == "champion"}
    assert len(checksums) == 1
    wait_for(lambda: PREVIOUS in arms(worker, "law"))
    assert PREVIOUS not in arms(worker, "faq")
    registry.rollback("default", to=first)
    wait_for(lambda: worker.watcher.serving == {"default": first, "law": 1, "faq": first})
