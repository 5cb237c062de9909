"""A canary over two workers, a real Redis and a real MLflow: who becomes champion, and who does not.

Traffic is random text of a toy pair at temperature 1; adapters are random, so their spread says how bad a
draft is. No request may fail in any of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redraft_models.registry import Registry
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.engine.interface import CHALLENGER, PREVIOUS

from .canary_members import BAD, QUICK, RUIN, Member, arms, tag, until, wait_for

pytestmark = pytest.mark.integration


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
