"""Reading versions: absence, order, paging."""

from collections.abc import Callable
from functools import partial
from typing import Any

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


class Counting(Registry):
    """Counts reads (each page is one) and the statements that reach the database."""

    def __init__(self, tracking_uri: str) -> None:
        super().__init__(tracking_uri)
        self.reads = self.statements = 0
        from sqlalchemy import event

        event.listen(self._client._get_registry_client().store.engine, "before_cursor_execute", self._count)

    def _count(self, *_: object) -> None:
        self.statements += 1

    def _read(self, what: str, call: Callable[[], Any]) -> Any:
        self.reads += 1
        return super()._read(what, call)

    def cost(self, call: Callable[[], object]) -> tuple[int, int]:
        self.reads = self.statements = 0
        call()
        return self.reads, self.statements


TRAINED = {"validation_status": "rejected", "round_id": "r", "stream_last_id": "1-0"}


@pytest.fixture(scope="module")
def counting(registry: Registry) -> Counting:
    return Counting(registry.tracking_uri)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda registry, domain: registry.champion(domain), id="champion"),
        pytest.param(lambda registry, domain: registry.champion_is_base(domain), id="champion_is_base"),
        pytest.param(lambda registry, domain: registry.newest(domain), id="newest"),
        pytest.param(lambda registry, domain: registry.cursor(domain), id="cursor"),
        pytest.param(lambda registry, domain: registry.pending(domain), id="pending"),
        pytest.param(lambda registry, domain: registry.running_canary(domain), id="running_canary"),
        pytest.param(lambda registry, domain: registry.version_of_round(domain, "r"), id="version_of_round"),
        pytest.param(lambda registry, domain: registry.version(domain, 3), id="version"),
        pytest.param(lambda registry, domain: registry.versions(domain, most=10), id="ten_newest"),
    ],
)
def test_what_is_asked_often_costs_the_same_with_many_versions(
    counting: Counting,
    grown: tuple[str, str],
    call: Callable[[Registry, str], object],
) -> None:
    few, many = (counting.cost(partial(call, counting, domain)) for domain in grown)
    assert few == many
    assert few[0] == 1


def test_reading_all_versions_costs_more_with_many(counting: Counting, grown: tuple[str, str]) -> None:
    """The wrong variant: whoever looks among all versions pays for each page."""
    few, many = (counting.cost(partial(counting.versions, domain)) for domain in grown)
    assert many[0] > few[0]


def test_a_promotion_costs_the_same_with_many_versions(counting: Counting, grown: tuple[str, str]) -> None:
    costs = []
    for domain in grown:
        counting.promote(domain, 4)
        costs.append(counting.cost(partial(counting.promote, domain, 5)))
        counting.rollback(domain)
    assert costs[0] == costs[1]


@pytest.fixture(scope="module")
def grown(registry: Registry) -> tuple[str, str]:
    """Two domains that differ in the number of versions alone: one page of them, and three."""
    domains = []
    for count in (12, 212):
        domain = f"grown-{count}"
        registry._ensure_model(domain)
        for _ in range(count):
            registry._client.create_model_version(
                f"redraft-{domain}", "mlflow-artifacts:/none", tags=TRAINED, await_creation_for=0
            )
        registry._client.set_registered_model_alias(f"redraft-{domain}", "champion", "2")
        domains.append(domain)
    return domains[0], domains[1]
