"""Downloads: whole or not at all, and nothing outside the folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.errors import AdapterRejected, AdapterSpoilt, RegistryError
from redraft_models.registry import Registry

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration


def test_a_download_is_whole_and_stays_inside_its_folder(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    number = candidate()
    target = tmp_path / "cache"
    folder = registry.download(domain, number, target)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "provenance.json"}
    assert list(target.iterdir()) == [folder]
    assert registry.download(domain, number, target) == folder
    assert list(target.iterdir()) == [folder]


@pytest.mark.parametrize(
    "source",
    [
        "file:///etc",
        "/etc",
        "s3://bucket/x",
        "http://127.0.0.1/x",
        "runs:/{run}/../../..",
        "runs:/{run}/version%2f..",
        "dbfs:/x",
        "",
    ],
)
def test_a_forced_source_of_another_kind_is_rejected_and_nothing_is_written(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path, source: str
) -> None:
    candidate()
    run_id = registry.version(domain, 1).run_id
    forced = registry._client.create_model_version(f"redraft-{domain}", source.format(run=run_id), run_id)
    with pytest.raises(AdapterRejected):
        registry.download(domain, int(forced.version), tmp_path / "cache")
    assert not any((tmp_path / "cache").rglob("*"))


def test_a_version_that_copies_another_is_followed(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    candidate()
    name = f"redraft-{domain}"
    copy = registry._client.copy_model_version(f"models:/{name}/1", name)
    assert (registry.download(domain, int(copy.version), tmp_path / "cache") / "provenance.json").is_file()


def test_versions_that_refer_to_each_other_end(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    candidate()
    name = f"redraft-{domain}"
    loop = registry._client.create_model_version(
        name, f"models:/{name}/1", registry.version(domain, 1).run_id
    )
    store = registry._client._get_registry_client().store
    with store.ManagedSessionMaker(read_only=False) as session:
        row = store._get_sql_model_version(session, name, int(loop.version))
        row.source = f"models:/{name}/{loop.version}"
    with pytest.raises(AdapterRejected, match="not accepted"):
        registry.download(domain, int(loop.version), tmp_path / "cache")


def test_links_among_the_artifacts_are_not_followed(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    candidate()
    artifacts = Path(
        registry._client.get_run(registry.version(domain, 1).run_id).info.artifact_uri.removeprefix("file://")
    )
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (artifacts / "version" / "secret.json").symlink_to(outside)
    with pytest.raises(AdapterRejected, match="symbolic link"):
        registry.download(domain, 1, tmp_path / "cache")
    assert not any((tmp_path / "cache").rglob("*"))


def test_a_version_whose_folder_is_a_link_out_of_the_store_is_refused(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    candidate()
    artifacts = Path(
        registry._client.get_run(registry.version(domain, 1).run_id).info.artifact_uri.removeprefix("file://")
    )
    elsewhere = tmp_path / "elsewhere"
    (artifacts / "version").rename(elsewhere)
    (artifacts / "version").symlink_to(elsewhere)
    with pytest.raises((AdapterRejected, RegistryError)):
        registry.download(domain, 1, tmp_path / "cache")
    assert not any((tmp_path / "cache").rglob("*"))


def test_too_many_bytes_files_or_levels_are_not_fetched(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    candidate()
    with pytest.raises(AdapterRejected, match="bytes, more than the 5 allowed"):
        registry.download(domain, 1, tmp_path / "cache", max_bytes=5)
    run_id = registry.version(domain, 1).run_id
    many = tmp_path / "many"
    many.mkdir()
    for index in range(70):
        (many / f"{index}.json").write_text("{}")
    registry.log_artifacts(run_id, many, "version")
    with pytest.raises(AdapterRejected, match="73 files"):
        registry.download(domain, 1, tmp_path / "cache")


def test_weights_that_differ_from_the_tag_are_rejected(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    number = candidate(sha256="0" * 64)
    with pytest.raises(AdapterSpoilt, match="sha256"):
        registry.download(domain, number, tmp_path / "cache")


def test_a_head_that_differs_from_the_tag_or_is_gone_is_rejected(
    registry: Registry, domain: str, candidate: Candidate, tmp_path: Path
) -> None:
    """Without the tag, somebody who alters files and provenance together would turn a trimmed head full."""
    number = candidate(head_sha256="0" * 64)
    with pytest.raises(AdapterRejected, match="ids of the head are missing"):
        registry.download(domain, number, tmp_path / "cache")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "head.safetensors").write_bytes(b"ids")
    registry.log_artifacts(registry.version(domain, number).run_id, tmp_path / "adapter", "version/adapter")
    with pytest.raises(AdapterSpoilt, match="ids of the head have the sha256"):
        registry.download(domain, number, tmp_path / "cache")


def test_a_version_without_files_is_rejected(registry: Registry, domain: str, tmp_path: Path) -> None:
    run_id = registry.start_run(domain, "round", {})
    number = registry.register(domain, run_id, {})
    with pytest.raises((AdapterRejected, RegistryError)):
        registry.download(domain, number, tmp_path / "cache")
