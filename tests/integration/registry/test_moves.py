"""Promoting, rejecting, rolling back, and finishing what a killed round left."""

from collections.abc import Callable

import pytest
from redraft_models.errors import RegistryError
from redraft_models.registry import Aliases, Registry

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration


def aliases(registry: Registry, domain: str) -> dict[str, int]:
    found = {name: registry.alias(domain, name) for name in ("champion", "challenger", "previous")}
    return {name: info.version for name, info in found.items() if info is not None}


def test_promoting_moves_previous_then_champion_and_explains_itself(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    registry.settle(domain, candidate(acceptance_rate=0.5))
    assert aliases(registry, domain) == {"champion": 1}
    info = registry.settle(domain, candidate(acceptance_rate=0.6, decision_reason="It is better."))
    assert aliases(registry, domain) == {"champion": 2, "previous": 1}
    assert info.validation_status == "approved"
    assert info.tags["champion_before"] == "1"
    entity = registry._client.get_model_version(f"redraft-{domain}", "2")
    assert entity.current_stage == "None"
    assert "Promoted to champion. It is better." in entity.description
    model = registry._client.get_registered_model(f"redraft-{domain}")
    assert f"/models/redraft-{domain}/versions/2), measured acceptance 0.6000" in model.description


def test_a_rejected_candidate_stays_as_a_version_and_moves_nothing(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    registry.settle(domain, candidate())
    info = registry.settle(domain, candidate("rejected", decision_reason="0.50 does not exceed 0.60."))
    assert info.validation_status == "rejected"
    assert aliases(registry, domain) == {"champion": 1}
    assert registry.settle(domain, 2) == info


def test_a_candidate_overtaken_by_a_newer_champion_is_not_promoted(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    late = candidate()
    registry.promote(domain, candidate())
    info = registry.settle(domain, late)
    assert info.validation_status == "rejected"
    assert info.tags["decision_reason"] == "Version 2 became champion before this one was settled."
    assert aliases(registry, domain) == {"champion": 2}


def test_rolling_back_walks_to_the_base_and_never_forward(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(3):
        registry.settle(domain, candidate())
    assert registry.rollback(domain, reason="live acceptance fell") == (3, 2)
    assert aliases(registry, domain) == {"champion": 2, "previous": 1}
    assert registry.version(domain, 3).tags["rollback_reason"] == "live acceptance fell"
    assert registry.rollback(domain) == (2, 1)
    assert registry.rollback(domain) == (1, None)
    assert aliases(registry, domain) == {}
    assert registry.champion_is_base(domain)
    with pytest.raises(RegistryError, match="nothing to roll back"):
        registry.rollback(domain)


def test_promoting_after_a_rollback_to_the_base_ends_it(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    registry.settle(domain, candidate())
    registry.rollback(domain)
    registry.settle(domain, candidate())
    assert not registry.champion_is_base(domain)
    assert aliases(registry, domain) == {"champion": 2}
    assert registry.rollback(domain) == (2, None)


def test_rolling_back_to_a_chosen_version_or_straight_to_the_base(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(3):
        registry.settle(domain, candidate())
    assert registry.rollback(domain, to=1) == (3, 1)
    assert aliases(registry, domain) == {"champion": 1}
    assert registry.rollback(domain, to=3) == (1, 3)
    assert aliases(registry, domain) == {"champion": 3, "previous": 2}
    assert "rollback_reason" not in registry.version(domain, 3).tags
    assert registry.rollback(domain, to=0) == (3, None)
    assert registry.champion_is_base(domain)
    with pytest.raises(RegistryError, match="version 7"):
        registry.rollback(domain, to=7)


def test_registering_a_run_twice_makes_one_version(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    assert candidate(round_id="same", gain=0.1) == candidate(round_id="same", gain=0.2) == 1
    assert registry.version(domain, 1).tags["gain"] == "0.2"


def test_other_alias_names_are_used_throughout(registry: Registry, domain: str, candidate: Candidate) -> None:
    renamed = Registry(
        registry.tracking_uri, aliases=Aliases(champion="live", challenger="next", previous="last")
    )
    number = candidate()
    renamed.promote(domain, number)
    info = renamed.alias(domain, "live")
    assert info is not None
    assert info.version == number
    assert renamed.champion(domain) == info


def test_a_candidate_measured_against_another_champion_is_not_promoted(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    """The champion was rolled back while the round trained: that this one beats it says nothing any more."""
    registry.settle(domain, candidate(parent_version="base"))
    late = candidate(parent_version=1)
    registry.rollback(domain)
    info = registry.settle(domain, late)
    assert info.validation_status == "rejected"
    assert info.tags["decision_reason"] == (
        "It was measured against version 1, but the base draft became champion before it was settled."
    )
    assert aliases(registry, domain) == {}
    assert registry.settle(domain, candidate(parent_version="base")).validation_status == "approved"


def test_a_round_killed_while_settling_is_finished_by_settling_again(
    domain_of_bare_versions: Callable[..., str], killed_at_each_write: Callable[..., int]
) -> None:
    def prepare() -> str:
        pending = {"validation_status": "pending", "decision": "promoted", "parent_version": 1}
        return domain_of_bare_versions({}, pending, champion=1, challenger=2)

    def check(registry: Registry, domain: str) -> None:
        between = aliases(registry, domain)
        assert between["champion"] in (1, 2)
        assert between["champion"] == 1 or between["previous"] == 1
        for info in registry.pending(domain):
            registry.settle(domain, info.version)
        assert {"champion": 2, "previous": 1}.items() <= aliases(registry, domain).items()
        assert registry.version(domain, 2).validation_status == "approved"

    def act(registry: Registry, domain: str) -> None:
        registry.settle(domain, 2)

    assert killed_at_each_write(prepare, act, check) >= 6


def test_a_rollback_killed_half_way_never_leaves_the_domain_without_a_clear_answer(
    domain_of_bare_versions: Callable[..., str], killed_at_each_write: Callable[..., int]
) -> None:
    def prepare() -> str:
        return domain_of_bare_versions({}, champion=1)

    def check(registry: Registry, domain: str) -> None:
        champion = registry.champion(domain)
        assert champion is not None or registry.champion_is_base(domain)
        if champion is not None:
            registry.rollback(domain)
        assert registry.champion_is_base(domain)

    assert killed_at_each_write(prepare, lambda registry, domain: registry.rollback(domain), check) >= 4


def test_several_who_decide_the_same_rollback_go_back_once(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(3):
        registry.promote(domain, candidate())
    numbers = {"watch_acceptance_rate": 0.41}
    assert registry.rollback(domain, reason="fell", leaving=3, tags=numbers) == (3, 2)
    assert registry.rollback(domain, reason="fell", leaving=3) == (2, 2)
    assert aliases(registry, domain) == {"champion": 2, "previous": 1}
    assert registry.version(domain, 3).tags["watch_acceptance_rate"] == "0.41"
    # Without saying which version is left, the second one walks on: why `leaving` exists.
    assert registry.rollback(domain) == (2, 1)


def test_a_rollback_killed_at_any_point_is_finished_by_the_next_who_decides_the_same(
    domain_of_bare_versions: Callable[..., str], killed_at_each_write: Callable[..., int]
) -> None:
    def prepare() -> str:
        before = ({"champion_before": 1}, {"champion_before": 2})
        return domain_of_bare_versions({}, *before, champion=3, previous=2)

    def check(registry: Registry, domain: str) -> None:
        registry.rollback(domain, reason="fell", leaving=3)
        assert aliases(registry, domain) == {"champion": 2, "previous": 1}
        assert registry.version(domain, 3).tags["rollback_reason"] == "fell"

    def act(registry: Registry, domain: str) -> None:
        registry.rollback(domain, reason="fell", leaving=3)

    assert killed_at_each_write(prepare, act, check) >= 4


def test_the_way_back_is_known_where_the_alias_previous_vanished(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(2):
        registry.promote(domain, candidate())
    registry._client.delete_registered_model_alias(f"redraft-{domain}", "previous")
    assert registry.rollback(domain) == (2, 1)


def test_versions_deleted_between_two_calls_are_passed_over(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(3):
        registry.promote(domain, candidate())
    registry._client.delete_model_version(f"redraft-{domain}", "1")
    assert registry.rollback(domain) == (3, 2)
    assert aliases(registry, domain) == {"champion": 2}
    registry._client.delete_model_version(f"redraft-{domain}", "2")
    registry.promote(domain, 3)
    assert aliases(registry, domain) == {"champion": 3}
    assert registry.rollback(domain) == (3, None)
    with pytest.raises(RegistryError, match="could not find version 2"):
        registry.promote(domain, 2)
    with pytest.raises(RegistryError, match="could not find version 2"):
        registry.reject(domain, 2, "gone")


def test_the_champion_deleted_while_another_is_promoted_leaves_no_way_back_to_it(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    """Somebody deletes the old champion after the promotion has read it."""

    class Raced(Registry):
        def _tag_if_there(self, *_: object) -> None: ...

        def _point_if_there(self, domain: str, alias: str, version: int | None) -> None:
            self._client.delete_model_version(f"redraft-{domain}", "1")
            super()._point_if_there(domain, alias, version)

    registry.promote(domain, candidate())
    late = candidate()
    Raced(registry.tracking_uri).promote(domain, late)
    assert aliases(registry, domain) == {"champion": late}
