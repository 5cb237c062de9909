"""The watch after a promotion, and champions that move, or die moving, behind the workers' backs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redraft_models.registry import Registry

from .canary_members import BAD, RUIN, Member, tag, until, wait_for

pytestmark = pytest.mark.integration


def rolled_back(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> tuple[int, int, list[Member]]:
    """A good version, a ruin promoted after it, and two workers that have gone back to the first."""
    first, second = version(0.0), version(RUIN)
    registry.promote("default", first)
    workers = [member(), member()]
    registry.promote("default", second)
    wait_for(lambda: all(worker.version() == second for worker in workers))
    until(lambda: all(worker.version() == first for worker in workers), workers)
    return first, second, workers


def test_a_bad_champion_is_rolled_back_by_the_watch(
    member: Callable[..., Member], version: Callable[..., int], registry: Registry
) -> None:
    """Promoted by hand, past the canary: the control share shows that the version before was better."""
    first, second, _ = rolled_back(member, version, registry)
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
    first, second, workers = rolled_back(member, version, registry)
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
