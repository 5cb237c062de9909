"""What an operator asks for, carried out in a real registry: moves, refusals, and a registry that is away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from redraft_models.registry import Registry
from redraft_serving.actions import ActionConflict, Actions, ActionUnavailable, Moved, UnknownVersion

Candidate = Callable[..., int]


@pytest.fixture
def told() -> list[tuple[str, int | None]]:
    return []


@pytest.fixture
def actions(registry: Registry, told: list[tuple[str, int | None]]) -> Actions:
    return Actions(registry, lambda domain, version: told.append((domain, version)))


def settled(registry: Registry, domain: str, version: int) -> int:
    registry.settle(domain, version)
    return version


def test_promote_and_back_again(
    actions: Actions, registry: Registry, candidate_in: Candidate, domain: str, told: list[Any]
) -> None:
    """Also a version that the gate had rejected: an operator's word stands above it."""
    first = settled(registry, domain, candidate_in(domain))
    second = settled(registry, domain, candidate_in(domain, "rejected"))
    assert actions.promote(domain, second) == Moved(domain, first, second)
    champion = registry.champion(domain)
    assert champion is not None
    assert (champion.version, champion.validation_status) == (second, "approved")
    assert actions.rollback(domain, reason="answers got slower") == Moved(domain, second, first)
    assert registry.version(domain, second).tags["rollback_reason"] == "answers got slower"
    assert actions.rollback(domain, to=0) == Moved(domain, first, None)
    assert registry.champion_is_base(domain)
    assert told == [(domain, second), (domain, first), (domain, None)]


def test_what_makes_no_sense_changes_nothing(
    actions: Actions, registry: Registry, candidate_in: Candidate, domain: str, told: list[Any]
) -> None:
    for unknown in (lambda: actions.promote(domain, 1), lambda: actions.rollback(domain, to=1)):
        with pytest.raises(UnknownVersion, match="no version 1"):
            unknown()
    for senseless in (lambda: actions.rollback(domain), lambda: actions.rollback(domain, to=0)):
        with pytest.raises(ActionConflict, match="serves its base draft already"):
            senseless()
    pending = candidate_in(domain)
    with pytest.raises(ActionConflict, match="still measured"):
        actions.promote(domain, pending)
    settled(registry, domain, pending)
    with pytest.raises(ActionConflict, match="is the champion"):
        actions.promote(domain, pending)
    with pytest.raises(ActionConflict, match=f"serves version {pending} already"):
        actions.rollback(domain, to=pending)
    champion = registry.champion(domain)
    assert champion is not None
    assert (champion.version, told) == (pending, [])


def test_a_word_for_the_present_champion_ends_the_trial_beside_it(
    actions: Actions, registry: Registry, candidate_in: Candidate, domain: str
) -> None:
    champion = settled(registry, domain, candidate_in(domain))
    tried = candidate_in(domain)
    registry.settle(domain, tried, canary=True)
    assert actions.promote(domain, champion) == Moved(domain, champion, champion)
    assert registry.running_canary(domain) is None
    found, present = registry.version(domain, tried), registry.champion(domain)
    assert (found.validation_status, found.tags["canary"]) == ("rejected", "undecided")
    assert "An operator kept version" in found.tags["decision_reason"]
    assert present is not None
    assert present.version == champion
    with pytest.raises(ActionConflict, match="is the champion"):
        actions.promote(domain, champion)


def test_an_operator_s_word_stands_above_a_promotion_at_the_same_moment(
    actions: Actions,
    registry: Registry,
    candidate_in: Candidate,
    domain: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    champion = settled(registry, domain, candidate_in(domain))
    tried = candidate_in(domain)
    registry.settle(domain, tried, canary=True)
    reject = registry.reject

    def overtaken(*given: Any) -> None:
        registry.promote(domain, tried, canary=True)  # what a serving worker does when it decides
        reject(*given)

    monkeypatch.setattr(registry, "reject", overtaken)
    actions.promote(domain, champion)
    present = registry.champion(domain)
    assert present is not None
    assert present.version == champion
    assert registry.version(domain, tried).validation_status == "rejected"


def test_a_failed_announcement_fails_nothing(
    registry: Registry, candidate_in: Candidate, domain: str
) -> None:
    def deaf(_: str, __: int | None) -> None:
        raise ConnectionError("Redis is away")

    first = settled(registry, domain, candidate_in(domain))
    second = settled(registry, domain, candidate_in(domain, "rejected"))
    assert Actions(registry, deaf).promote(domain, second) == Moved(domain, first, second)


def test_moves_wait_for_no_other(actions: Actions, registry: Registry, domain: str) -> None:
    """Callers of a registry that hangs are told so, instead of taking a thread each."""
    entered, leave = threading.Event(), threading.Event()

    def slow() -> None:
        with actions._move():
            entered.set()
            leave.wait(10)

    holder = threading.Thread(target=slow)
    holder.start()
    try:
        assert entered.wait(10)
        with pytest.raises(ActionConflict, match="just now"):
            actions.rollback(domain)
    finally:
        leave.set()
        holder.join()
    with pytest.raises(ActionConflict, match="base draft"):
        actions.rollback(domain)


def test_a_registry_that_is_away_is_named_by_no_address(domain: str) -> None:
    away = Actions(Registry("http://127.0.0.1:9", timeout_seconds=1))
    for action in (lambda: away.promote(domain, 1), lambda: away.rollback(domain)):
        with pytest.raises(ActionUnavailable) as refused:
            action()
        assert "127.0.0.1" not in str(refused.value)
