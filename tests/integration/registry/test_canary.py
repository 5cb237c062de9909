"""Canaries in the registry: begun, passed, failed, overtaken, and finished by others after a death."""

from collections.abc import Callable

import pytest
from redraft_models.registry import Registry

Candidate = Callable[..., int]
Bare = Callable[..., str]
Killing = Callable[..., int]

pytestmark = pytest.mark.integration


def aliases(registry: Registry, domain: str) -> dict[str, int]:
    found = {name: registry.alias(domain, name) for name in ("champion", "challenger", "previous")}
    return {name: info.version for name, info in found.items() if info is not None}


@pytest.fixture
def running(registry: Registry, domain: str, candidate: Candidate) -> int:
    """Version 2, on trial beside the champion 1."""
    registry.promote(domain, candidate(parent_version="base"))
    number = candidate(parent_version=1, decision_reason="It is better.")
    registry.settle(domain, number, canary=True)
    return number


def test_an_approved_candidate_goes_on_trial_and_the_champion_stays(
    registry: Registry, domain: str, running: int
) -> None:
    info = registry.running_canary(domain)
    assert info is not None
    assert (info.version, info.validation_status, info.tags["canary"]) == (running, "approved", "running")
    assert int(info.tags["canary_started_ms"]) > 1_600_000_000_000
    assert aliases(registry, domain) == {"champion": 1, "challenger": running}
    assert registry.pending(domain) == []
    assert registry.settle(domain, running, canary=True) == info
    entity = registry._client.get_model_version(f"redraft-{domain}", str(running))
    assert entity.description.startswith("On trial")
    assert registry._client.get_run(info.run_id).info.run_name == f"version {running}: on trial"


def test_a_rejected_candidate_does_not_go_on_trial(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    assert registry.settle(domain, candidate("rejected"), canary=True).validation_status == "rejected"
    assert registry.running_canary(domain) is None


def test_a_passed_canary_is_champion_and_keeps_its_live_numbers(
    registry: Registry, domain: str, running: int
) -> None:
    numbers = {"canary_acceptance_rate": 0.62, "canary_requests": 812}
    info = registry.promote(domain, running, numbers, canary=True)
    assert info.tags["canary"] == "passed"
    assert info.tags["canary_requests"] == "812"
    assert aliases(registry, domain) == {"champion": running, "previous": 1}
    assert registry.running_canary(domain) is None
    run = registry._client.get_run(info.run_id)
    assert run.data.metrics["canary/acceptance_rate"] == 0.62
    assert run.info.run_name == f"version {running}: promoted"
    assert registry.promote(domain, running, canary=True) == info


@pytest.mark.parametrize("outcome", ["failed", "undecided"])
def test_a_canary_that_does_not_pass_is_rejected_with_its_live_numbers(
    registry: Registry, domain: str, running: int, outcome: str
) -> None:
    tags = {"canary_acceptance_rate": 0.55} | ({} if outcome == "failed" else {"canary": outcome})
    registry.reject(domain, running, "Not good enough when served.", tags)
    info = registry.version(domain, running)
    assert info.validation_status == "rejected"
    assert info.tags["canary"] == outcome
    assert info.tags["canary_acceptance_rate"] == "0.55"
    assert info.tags["decision_reason"] == "Not good enough when served."
    assert info.tags["gate_reason"] == "It is better."
    assert aliases(registry, domain) == {"champion": 1}
    assert registry.running_canary(domain) is None


def test_another_champion_ends_the_canary_with_the_reason(
    registry: Registry, domain: str, candidate: Candidate, running: int
) -> None:
    other = candidate()
    registry.promote(domain, other)
    info = registry.version(domain, running)
    assert info.tags["canary"] == "overtaken"
    assert info.tags["decision_reason"] == f"Version {other} became champion before this one was settled."


def test_a_rollback_ends_a_canary_that_was_measured_against_the_version_left(
    registry: Registry, domain: str, running: int
) -> None:
    assert registry.rollback(domain) == (1, None)
    info = registry.version(domain, running)
    assert info.validation_status == "rejected"
    assert info.tags["decision_reason"] == (
        "It was measured against version 1, but the base draft became champion before it was settled."
    )
    assert aliases(registry, domain) == {}


def test_a_canary_whose_champion_stays_goes_on(registry: Registry, domain: str, running: int) -> None:
    registry.promote(domain, 1)
    assert registry.settle(domain, running).canary_running
    assert aliases(registry, domain) == {"champion": 1, "challenger": running}


def test_a_late_decision_undoes_nothing(registry: Registry, domain: str, running: int) -> None:
    registry.rollback(domain)
    assert registry.promote(domain, running, canary=True).validation_status == "rejected"
    assert aliases(registry, domain) == {}
    # An operator's word still counts, on a version that any comparison has left.
    assert registry.promote(domain, running).validation_status == "approved"
    assert aliases(registry, domain) == {"champion": running}


@pytest.mark.parametrize("finish", ["promote", "settle"])
def test_a_canary_is_overtaken_also_where_aliases_were_moved_by_hand(
    registry: Registry, domain: str, candidate: Candidate, running: int, finish: str
) -> None:
    other = candidate()
    registry._client.set_registered_model_alias(f"redraft-{domain}", "champion", str(other))
    info = getattr(registry, finish)(domain, running)
    assert info.validation_status == "rejected"
    assert info.tags["canary"] == "overtaken"
    champion = registry.champion(domain)
    assert champion is not None
    assert champion.version == other


def test_a_canary_is_found_and_promoted_without_its_alias(
    registry: Registry, domain: str, running: int
) -> None:
    registry._client.delete_registered_model_alias(f"redraft-{domain}", "challenger")
    found = registry.running_canary(domain)
    assert found is not None
    registry.promote(domain, found.version, canary=True)
    assert aliases(registry, domain) == {"champion": running, "previous": 1}


def test_a_deleted_canary_runs_no_more(registry: Registry, domain: str, running: int) -> None:
    registry._client.delete_model_version(f"redraft-{domain}", str(running))
    assert registry.running_canary(domain) is None


def test_the_newer_of_two_canaries_goes_on(
    registry: Registry, domain: str, candidate: Candidate, running: int
) -> None:
    newer = candidate(parent_version=1)
    registry.settle(domain, newer, canary=True)
    found = registry.running_canary(domain)
    assert found is not None
    assert found.version == newer
    assert registry.version(domain, running).tags["canary"] == "overtaken"
    assert aliases(registry, domain) == {"champion": 1, "challenger": newer}


def test_a_candidate_whose_promotion_had_begun_is_promoted_not_tried(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    """It was settled without canaries by a process that died, and is settled again with them."""
    number = candidate()
    registry._client.set_registered_model_alias(f"redraft-{domain}", "champion", str(number))
    assert registry.settle(domain, number, canary=True).validation_status == "approved"
    assert registry.running_canary(domain) is None


def test_a_canary_that_had_only_begun_to_begin_did_not_pass(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    """It died before the status, and canaries are off when its round is settled again."""
    number = candidate(canary="running", canary_started_ms=1)
    assert registry.running_canary(domain) is None
    assert registry.settle(domain, number).tags["canary"] == "skipped"


PENDING = {"validation_status": "pending", "decision": "promoted", "parent_version": 1}
TRIED = PENDING | {"validation_status": "approved", "canary": "running"}


def test_a_beginning_killed_at_any_point_is_finished_by_settling_again(
    domain_of_bare_versions: Bare, killed_at_each_write: Killing
) -> None:
    def check(registry: Registry, domain: str) -> None:
        for info in registry.pending(domain):
            registry.settle(domain, info.version, canary=True)
        found = registry.running_canary(domain)
        assert found is not None
        assert found.version == 2
        assert aliases(registry, domain) == {"champion": 1, "challenger": 2}

    def act(registry: Registry, domain: str) -> None:
        registry.settle(domain, 2, canary=True)

    assert (
        killed_at_each_write(
            lambda: domain_of_bare_versions({}, PENDING, champion=1, challenger=2), act, check
        )
        >= 4
    )


def test_a_promotion_killed_at_any_point_is_finished_by_another_worker(
    domain_of_bare_versions: Bare, killed_at_each_write: Killing
) -> None:
    def check(registry: Registry, domain: str) -> None:
        found = registry.running_canary(domain)
        if found is not None:
            registry.promote(domain, found.version, {"canary_requests": 5}, canary=True)
        assert {"champion": 2, "previous": 1}.items() <= aliases(registry, domain).items()
        tags = registry.version(domain, 2).tags
        assert (tags["canary"], tags["canary_requests"]) == ("passed", "5")

    def act(registry: Registry, domain: str) -> None:
        registry.promote(domain, 2, {"canary_requests": 5}, canary=True)

    assert (
        killed_at_each_write(lambda: domain_of_bare_versions({}, TRIED, champion=1, challenger=2), act, check)
        >= 8
    )


def test_a_rejection_killed_at_any_point_leaves_a_canary_or_a_rejected_version(
    domain_of_bare_versions: Bare, killed_at_each_write: Killing
) -> None:
    def check(registry: Registry, domain: str) -> None:
        found = registry.running_canary(domain)
        if found is not None:
            registry.reject(domain, found.version, "worse", {"canary_requests": 5})
        tags = registry.version(domain, 2).tags
        assert (tags["validation_status"], tags["decision_reason"]) == ("rejected", "worse")
        assert registry.running_canary(domain) is None
        champion = registry.champion(domain)
        assert champion is not None
        assert champion.version == 1

    def act(registry: Registry, domain: str) -> None:
        registry.reject(domain, 2, "worse", {"canary_requests": 5})

    assert (
        killed_at_each_write(lambda: domain_of_bare_versions({}, TRIED, champion=1, challenger=2), act, check)
        >= 5
    )
