"""The champion's files are spoilt on their way to a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redraft_models.registry_download import MOST_COPIES
from redraft_trainer.spec import fetch_champion

from ...faults.adapters import Adapters
from ...faults.spoiling import Place

pytestmark = pytest.mark.integration
DOMAIN = "spoilt"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "place")
    yield place
    place.close()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("adapter_model.safetensors", "sha256"), ("provenance.json", "JSON"), ("adapter_config.json", "JSON")],
)
def test_another_copy_of_the_champion_is_fetched_and_not_for_ever(
    name: str, problem: str, place: Place, toy_pair: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """A whole copy is what the candidate is compared with; where there is none, the round says why."""
    adapters = Adapters(toy_pair("random"), tmp_path / "adapters")
    champion = place.registry.version(DOMAIN, adapters.register(place.registry, 1, domain=DOMAIN))

    place.spoil(name, MOST_COPIES - 1)
    found = fetch_champion(place.workers, tmp_path, champion)
    assert (found["problem"], place.copies(name)) == (None, MOST_COPIES)
    assert list(Path(found["folder"]).rglob("adapter_model.safetensors"))

    place.spoil(name, MOST_COPIES)
    found = fetch_champion(place.workers, tmp_path, champion)
    assert (found["folder"], place.copies(name)) == (None, MOST_COPIES)
    assert problem in found["problem"]
