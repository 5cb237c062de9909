"""Reading versions: absence, order, paging."""

from collections.abc import Callable

import pytest
from redraft_models.errors import RegistryError
from redraft_models.registry import Registry

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration


def test_a_domain_that_nobody_trained_has_nothing_and_is_no_error(registry: Registry, domain: str) -> None:
    assert registry.champion(domain) is None
    assert registry.newest(domain) is None
    assert registry.versions(domain) == []
    assert registry.pending(domain) == []
    assert registry.version_of_round(domain, "r1") is None
    assert not registry.champion_is_base(domain)


def test_a_missing_version_is_an_error_that_names_it(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    candidate()
    with pytest.raises(RegistryError, match=f"find version 9 of redraft-{domain}"):
        registry.version(domain, 9)


def test_a_version_comes_back_as_it_was_registered(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    number = candidate(round_id="round-1", acceptance_rate=0.5, gain=None)
    info = registry.version(domain, number)
    assert (info.version, info.domain, info.status, info.ready) == (1, domain, "READY", True)
    assert info.tags["acceptance_rate"] == "0.5"
    assert "gain" not in info.tags
    assert info.source == f"runs:/{info.run_id}/version"
    assert info.created_ms > 1_600_000_000_000
    assert registry.version_of_round(domain, "round-1") == info
    assert registry.pending(domain) == [info]
    assert registry.alias(domain, "challenger") == info


def test_eleven_versions_are_ordered_as_numbers(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(11):
        candidate("rejected")
    assert [info.version for info in registry.versions(domain)] == list(range(11, 0, -1))
    newest = registry.newest(domain)
    assert newest is not None
    assert newest.version == 11


def test_deleting_the_champion_leaves_no_champion_and_no_wish_for_the_base(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    registry.settle(domain, candidate())
    registry._client.delete_model_version(f"redraft-{domain}", "1")
    assert registry.champion(domain) is None
    assert not registry.champion_is_base(domain)
