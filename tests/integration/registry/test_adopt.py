"""A new domain begins with another domain's champion: once, whoever asks and whoever dies."""

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.registry import Registry, VersionInfo

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration

WEIGHTS = Path("adapter/adapter_model.safetensors")


@pytest.fixture
def source(registry: Registry, candidate_in: Candidate) -> str:
    """A domain with a champion that was trained and measured."""
    name = f"source-{uuid.uuid4().hex[:8]}"
    number = candidate_in(
        name, stream_last_id="9-0", acceptance_rate=0.6, target_fingerprint="t", base_draft_fingerprint="b"
    )
    registry.promote(name, number)
    return name


def runs(registry: Registry, domain: str) -> list[str]:
    return [run.info.status for run in registry._client.search_runs([registry._experiment(domain)])]


def test_a_new_domain_gets_its_own_copy_of_the_champion(
    registry: Registry, domain: str, source: str, tmp_path: Path
) -> None:
    info = registry.adopt(domain, source)
    assert info is not None
    assert info == registry.champion(domain)
    assert (info.version, info.validation_status) == (1, "approved")
    assert info.tags["adopted_from"] == f"redraft-{source}/1"
    assert info.tags["target_fingerprint"] == "t"
    assert not any(key.startswith("stream_") for key in info.tags)
    assert registry.cursor(domain) is None
    assert registry.alias(domain, "challenger") is None
    assert registry.pending(domain) == []
    ours = registry.download(domain, 1, tmp_path / "ours")
    theirs = registry.download(source, 1, tmp_path / "theirs")
    assert (ours / WEIGHTS).read_bytes() == (theirs / WEIGHTS).read_bytes()
    assert info.run_id != registry.version(source, 1).run_id
    assert runs(registry, domain) == ["FINISHED"]
    assert domain in registry.domains()
    assert registry.adopt(domain, source) == info
    assert registry.newest(domain) == info


def test_nothing_is_copied_where_there_is_nothing_or_the_domain_has_its_own(
    registry: Registry, domain: str, source: str, candidate: Candidate
) -> None:
    assert registry.adopt(domain, f"nobody-{domain}") is None
    assert domain not in registry.domains()
    assert registry.adopt(source, source) == registry.champion(source)
    registry.settle(domain, candidate("rejected"))
    assert registry.adopt(domain, source) is None
    assert [info.version for info in registry.versions(domain)] == [1]


def test_a_domain_that_was_rolled_back_to_the_base_draft_stays_there(
    registry: Registry, domain: str, source: str
) -> None:
    registry.adopt(domain, source)
    assert registry.rollback(domain) == (1, None)
    assert registry.adopt(domain, source) is None
    assert registry.champion_is_base(domain)


def test_a_champion_with_missing_files_is_not_copied(registry: Registry, domain: str, source: str) -> None:
    registry.set_tags(source, 1, {"sha256": "0" * 64})
    assert registry.adopt(domain, source, patience_seconds=0) is None
    assert registry.newest(domain) is None


def test_a_round_after_it_starts_from_the_copy(
    registry: Registry, domain: str, source: str, candidate: Candidate
) -> None:
    registry.adopt(domain, source)
    info = registry.settle(domain, candidate(parent_version=1), canary=True)
    assert info.canary_running
    assert registry.promote(domain, 2, canary=True).tags["champion_before"] == "1"
    assert registry.rollback(domain) == (2, 1)


@pytest.mark.parametrize("patience", [30.0, 0.0])
def test_several_workers_at_once_make_one_version(
    registry: Registry, domain: str, source: str, patience: float
) -> None:
    """Without patience all of them copy, and all but the lowest version are deleted again."""
    answers: list[VersionInfo | None] = []
    barrier = threading.Barrier(4)

    def ask(own: Registry) -> None:
        barrier.wait()
        answers.append(own.adopt(domain, source, patience_seconds=patience))

    workers = [Registry(registry.tracking_uri, timeout_seconds=60) for _ in range(4)]
    threads = [threading.Thread(target=ask, args=(own,)) for own in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    registry.adopt(domain, source)
    (only,) = registry.versions(domain)
    assert registry.champion(domain) == only
    assert {info.version for info in answers if info is not None} == {only.version}
    if patience:
        assert runs(registry, domain) == ["FINISHED"]


def test_an_adoption_killed_at_any_point_is_finished_by_the_next(
    registry: Registry, source: str, killed_at_each_write: Callable[..., int]
) -> None:
    def check(registry: Registry, domain: str) -> None:
        info = registry.adopt(domain, source, patience_seconds=0)
        assert info is not None
        assert info.validation_status == "approved"
        assert [other.version for other in registry.versions(domain)] == [info.version]

    def act(registry: Registry, domain: str) -> None:
        registry.adopt(domain, source)

    assert killed_at_each_write(lambda: f"test-{uuid.uuid4().hex[:8]}", act, check) >= 8


def test_a_copy_left_pending_by_a_dead_worker_is_deleted_not_promoted(
    registry: Registry, domain: str, source: str
) -> None:
    """It copied at the same time as another, and died before it saw that the other was first."""
    first = registry.adopt(domain, source)
    late = registry.champion(source)
    assert late is not None
    registry._copy(domain, late)
    assert [info.version for info in registry.pending(domain)] == [2]
    # A training round would settle what it finds pending.
    assert registry.settle(domain, 2).validation_status == "rejected"
    assert registry.champion(domain) == first


def test_the_others_wait_for_the_one_who_copies_but_not_for_the_dead(
    registry: Registry, domain: str, source: str
) -> None:
    registry._ensure_model(domain)
    start = time.monotonic()
    info = registry.adopt(domain, source, patience_seconds=1.0)
    assert info is not None
    assert time.monotonic() - start >= 0.5
