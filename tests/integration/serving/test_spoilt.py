"""A version's files are spoilt on their way to a worker, by a real proxy before a real MLflow.

Another copy is fetched, and only a version whose copies go on being spoilt is refused.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redraft_models.loading import ModelPair, load_pair
from redraft_models.registry import Registry
from redraft_models.registry_download import MOST_COPIES
from redraft_models.settings import ModelSettings
from redraft_serving.swap import arms

from ...faults.adapters import ROTTEN, Adapters
from ...faults.spoiling import WEIGHTS, Place
from .canary_members import QUICK, Member, make_member, tag, wait_for

pytestmark = pytest.mark.integration

HASHES, CONFIG = "provenance.json", "adapter_config.json"
UNWATCHED = QUICK.model_copy(update={"watch_share": 0})
"""A watch would fetch the version before, too."""
CANDIDATE = {"validation_status": "pending", "decision": "promoted", "decision_reason": "The gate says so."}


@pytest.fixture(scope="module")
def one_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("spoilt"))
    yield place
    place.close()


@pytest.fixture
def place(one_place: Place) -> Place:
    one_place.proxy.heal()
    return one_place


@pytest.fixture(scope="module")
def adapters(
    toy_pair: Callable[[str], tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Adapters:
    return Adapters(toy_pair("random"), tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def pair(adapters: Adapters) -> ModelPair:
    target, draft = adapters.pair
    settings = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=256)
    return load_pair(settings, adapters.folder / "cache")


@pytest.fixture
def member(pair: ModelPair, redis_url: str, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    with ExitStack() as cleanup:
        yield lambda registry, **more: make_member(pair, registry, redis_url, tmp_path, cleanup, **more)


@pytest.fixture
def following(place: Place, adapters: Adapters, member: Callable[..., Member]) -> tuple[str, Member]:
    """A domain of the test's own, and a worker that serves its first champion, version 1."""
    domain = f"test-{uuid.uuid4().hex[:8]}"
    place.registry.promote(domain, adapters.register(place.registry, 1, domain=domain))
    worker = member(place.workers, domains=(domain,), settings=UNWATCHED)
    wait_for(lambda: worker.version(domain) == 1)
    return domain, worker


def refused(registry: Registry, domain: str, version: int) -> bool:
    """Whether a worker has rejected the version for all."""
    reason = tag(registry, version, "decision_reason", domain) or ""
    return tag(registry, version, "validation_status", domain) == "rejected" and "refused it" in reason


@pytest.mark.parametrize("name", [WEIGHTS, HASHES, CONFIG])
def test_a_version_whose_first_copies_are_spoilt_is_served_all_the_same(
    name: str, place: Place, adapters: Adapters, following: tuple[str, Member], tmp_path: Path
) -> None:
    """The present draft serves meanwhile, nothing is written about the version, and no copy stays behind."""
    domain, worker = following
    second = adapters.register(place.registry, 2, domain=domain)
    place.spoil(name, MOST_COPIES - 1)
    place.registry.promote(domain, second)
    served: set[int | str] = set()

    def follows() -> bool:
        served.add(worker.version(domain))
        return worker.version(domain) == second

    wait_for(follows)
    assert served <= {1, second}
    assert place.copies(name) == MOST_COPIES
    assert tag(place.registry, second, "validation_status", domain) == "approved"
    assert worker.watcher.counts == {(domain, "swapped"): 2}
    assert list((tmp_path / "adapters").iterdir()) == []


def test_without_another_copy_one_spoilt_answer_refuses_a_good_version_for_all(
    place: Place, adapters: Adapters, following: tuple[str, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong variant."""
    monkeypatch.setattr(arms, "MOST_COPIES", 1)
    domain, worker = following
    second = adapters.register(place.registry, 2, domain=domain)
    place.spoil(WEIGHTS, 1)
    place.registry.promote(domain, second)
    wait_for(lambda: refused(place.registry, domain, second))
    assert worker.version(domain) == 1


def test_a_version_whose_copies_are_all_spoilt_is_refused(
    place: Place, adapters: Adapters, following: tuple[str, Member]
) -> None:
    domain, worker = following
    second = adapters.register(place.registry, 2, domain=domain)
    place.spoil(WEIGHTS, math.inf)
    place.registry.promote(domain, second)
    wait_for(lambda: refused(place.registry, domain, second))
    third = adapters.register(place.registry, 3, domain=domain)
    place.proxy.spoil = None
    place.registry.promote(domain, third)
    wait_for(lambda: worker.version(domain) == third)
    assert place.copies() == MOST_COPIES + 1
    wait_for(lambda: worker.watcher.counts == {(domain, "swapped"): 2, (domain, "rejected"): 1})


@pytest.mark.parametrize("fault", ROTTEN)
def test_contents_that_are_wrong_as_recorded_are_refused_at_once(
    fault: str, place: Place, adapters: Adapters, following: tuple[str, Member]
) -> None:
    domain, worker = following
    second = adapters.register(place.registry, 2, fault, domain=domain)
    place.spoil("none of the files", 0)
    place.registry.promote(domain, second)
    wait_for(lambda: refused(place.registry, domain, second))
    assert place.copies() == 1
    assert worker.version(domain) == 1


def test_a_challenger_whose_first_copies_are_spoilt_gets_its_canary(
    place: Place, adapters: Adapters, following: tuple[str, Member]
) -> None:
    domain, worker = following
    second = adapters.register(place.registry, 2, domain=domain, tags=CANDIDATE)
    place.spoil(WEIGHTS, MOST_COPIES - 1)
    place.registry.settle(domain, second, canary=True)
    wait_for(lambda: worker.watcher.challengers == {domain: second})
    assert tag(place.registry, second, "canary", domain) == "running"
    assert worker.version(domain) == 1


def test_domains_that_share_a_version_count_its_copies_apart(
    place: Place, adapters: Adapters, member: Callable[..., Member]
) -> None:
    """Each fetches one a pass: counted together, two passes would use up the copies of three."""
    domain = f"test-{uuid.uuid4().hex[:8]}"
    version = adapters.register(place.registry, 1, domain=domain)
    place.registry.promote(domain, version)
    place.spoil(WEIGHTS, 2 * (MOST_COPIES - 1))
    worker = member(place.workers, domains=("faq", domain), shared_drafts={"faq": domain}, settings=UNWATCHED)
    wait_for(lambda: (worker.version("faq"), worker.version(domain)) == (version, version))
    assert not refused(place.registry, domain, version)


class Counting(Registry):
    """Counts the copies that are made of versions."""

    copies = 0

    def download(self, *arguments: Any, **more: Any) -> Path:
        self.copies += 1
        return super().download(*arguments, **more)


def test_files_that_are_spoilt_in_a_local_store_are_refused_after_as_many_copies(
    tracking_uri: str, adapters: Adapters, member: Callable[..., Member]
) -> None:
    registry = Counting(tracking_uri)
    version = adapters.register(registry, 1)
    run = registry._client.get_run(registry.version("default", version).run_id)
    weights = Path(run.info.artifact_uri.removeprefix("file://")) / "version" / "adapter" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    registry.promote("default", version)
    worker = member(registry)
    wait_for(lambda: refused(registry, "default", version))
    assert registry.copies == MOST_COPIES
    assert worker.version() == "base"
