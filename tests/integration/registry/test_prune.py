"""Pruning: what stays, what goes with its files, and what a death or a failing store leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.errors import RegistryError
from redraft_models.registry import Registry
from redraft_models.registry_download import _Place

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration


def numbers(registry: Registry, domain: str) -> list[int]:
    return [info.version for info in registry.versions(domain)]


def files(registry: Registry, run_id: str) -> set[str]:
    return {file.path for file in registry._client.list_artifacts(run_id)}


def test_250_versions_are_pruned_to_the_newest_ten_and_the_champion(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    registry.settle(domain, candidate())
    run_id = registry.version(domain, 1).run_id
    for _ in range(249):
        registry._client.create_model_version(f"redraft-{domain}", f"runs:/{run_id}/version", run_id)
    assert numbers(registry, domain) == list(range(250, 0, -1))
    pruned = registry.prune(domain, keep=10)
    assert pruned.versions == tuple(range(2, 241))
    assert numbers(registry, domain) == [*range(250, 240, -1), 1]
    # All of them had the champion's files as theirs, so these stay.
    assert pruned.bytes_freed == 0
    assert files(registry, run_id) == {"version"}


def test_files_go_with_a_version_and_the_run_keeps_the_rest(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    for _ in range(3):
        registry.settle(domain, candidate("rejected"))
    old, new = registry.version(domain, 1).run_id, registry.version(domain, 3).run_id
    registry.log_text(old, "x", "pictures/loss.txt")
    registry.log_metrics(old, {"loss": 0.5})
    pruned = registry.prune(domain, keep=2)
    assert pruned.versions == (1,)
    assert pruned.bytes_freed == len(b"weights") + 2 * len("{}")
    assert files(registry, old) == {"pictures"}
    assert files(registry, new) == {"version"}
    run = registry._client.get_run(old)
    assert run.data.metrics == {"loss": 0.5}
    assert run.data.tags["files"] == "pruned"
    assert registry.prune(domain, keep=2).versions == ()


def test_what_serves_may_serve_or_tells_the_range_always_stays(
    registry: Registry, domain_of_bare_versions: Callable[..., str]
) -> None:
    approved = {"validation_status": "approved"}
    domain = domain_of_bare_versions(
        approved,
        approved,
        approved | {"champion_before": 1},
        approved,
        approved | {"champion_before": 3},
        {"stream_last_id": "5-0"},
        approved | {"canary": "running"},
        {"validation_status": "pending"},
        {},
        {},
        {},
        champion=5,
        previous=3,
        somebodys_own=4,
    )
    assert registry.prune(domain, keep=1).versions == (2, 9, 10)
    assert numbers(registry, domain) == [11, 8, 7, 6, 5, 4, 3, 1]
    assert registry.prune(domain, keep=0).versions == ()


def test_a_version_that_got_an_alias_meanwhile_stays(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    """An operator names a version while the prune is at another one."""

    class Raced(Registry):
        def _tag_if_there(self, domain: str, version: int, tags: object) -> None:
            super()._tag_if_there(domain, version, tags)  # type: ignore[arg-type]
            if version == 2:
                self._client.set_registered_model_alias(f"redraft-{domain}", "champion", "2")

    for _ in range(4):
        registry.settle(domain, candidate("rejected"))
    assert Raced(registry.tracking_uri).prune(domain, keep=1).versions == (1, 3)
    assert numbers(registry, domain) == [4, 2]
    assert "pruning" not in registry.version(domain, 2).tags
    assert files(registry, registry.version(domain, 2).run_id) == {"version"}


def test_a_prune_killed_at_any_point_is_finished_by_the_next(
    registry: Registry, candidate_in: Candidate, killed_at_each_write: Callable[..., int]
) -> None:
    """What was begun is finished even if the next one would have kept it: its files may be gone."""
    shared: list[str] = []

    def prepare() -> str:
        domain = f"{__name__.rpartition('.')[2]}-{len(shared)}"
        shared.append(domain)
        for _ in range(2):
            candidate_in(domain, validation_status="rejected")
        return domain

    def check(registry: Registry, domain: str) -> None:
        first = registry.version_or_none(domain, 1)
        if first is not None and "pruning" in first.tags:
            with pytest.raises(RegistryError, match="being deleted"):
                registry.promote(domain, 1)
            assert registry.prune(domain, keep=2).versions == (1,)
        registry.prune(domain, keep=1)
        assert numbers(registry, domain) == [2]
        runs = registry._client.search_runs([registry._experiment(domain)])
        assert sorted(len(files(registry, run.info.run_id)) for run in runs) == [0, 1]

    def act(registry: Registry, domain: str) -> None:
        registry.prune(domain, keep=1)

    assert killed_at_each_write(prepare, act, check) >= 3


def test_files_of_another_kind_of_source_are_not_touched(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    """Somebody registered the files of another run by hand."""
    registry.settle(domain, candidate("rejected"))
    registry.settle(domain, candidate("rejected"))
    strangers, mine = registry.version(domain, 1).run_id, registry.version(domain, 2).run_id
    registry._client.delete_model_version(f"redraft-{domain}", "1")
    registry._client.create_model_version(f"redraft-{domain}", f"runs:/{strangers}/version", mine)
    registry.settle(domain, candidate("rejected"))
    assert registry.prune(domain, keep=1).versions == (2, 3)
    assert files(registry, strangers) == {"version"}


def test_a_store_that_cannot_delete_files_still_loses_the_version(
    registry: Registry, domain: str, candidate: Candidate
) -> None:
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    class Keeps(LocalArtifactRepository):  # type: ignore[misc]
        def delete_artifacts(self, artifact_path: str | None = None) -> None:
            raise NotImplementedError

    class OnKeeps(Registry):
        def _repository(self, place: _Place) -> Keeps:
            return Keeps(place.root)

    for _ in range(2):
        registry.settle(domain, candidate("rejected"))
    pruned = OnKeeps(registry.tracking_uri).prune(domain, keep=1)
    assert (pruned.versions, pruned.bytes_freed) == ((1,), 0)
