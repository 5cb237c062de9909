"""Runs as a person sees them in MLflow: parameters, curves, pictures, tables."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from redraft_models.errors import RegistryError
from redraft_models.registry import Registry
from redraft_models.registry_runs import RunData

Candidate = Callable[..., int]

pytestmark = pytest.mark.integration


def test_a_run_shows_curves_pictures_a_table_and_the_note(registry: Registry, domain: str) -> None:
    run_id = registry.start_run(
        domain, "round 1", {"learning_rate": 1e-3, "loss": "forward_kl"}, {"round_id": "r1"}
    )
    for step in range(3):
        registry.log_metrics(run_id, {"loss": 1.0 / (step + 1), "bad": float("nan"), "none": None}, step)
    registry.log_figure(run_id, Figure(), "pictures/loss.png")
    registry.log_text(run_id, "# Round", "report.md")
    registry.log_table(run_id, {"request": ["a", "b"], "overlap": [0.5, 0.75]}, "heldout.json")
    registry.end_run(run_id, "FINISHED")

    run = registry._client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "round 1"
    assert run.data.params == {"learning_rate": "0.001", "loss": "forward_kl"}
    assert set(run.data.metrics) == {"loss"}
    assert [point.step for point in registry._client.get_metric_history(run_id, "loss")] == [0, 1, 2]
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "heldout.json", "type": "table"}]
    files = {file.path for file in registry._client.list_artifacts(run_id)}
    assert files == {"pictures", "report.md", "heldout.json"}
    experiment = registry._client.get_experiment(run.info.experiment_id)
    assert experiment.name == f"redraft/{domain}"
    assert "one round" in experiment.tags["mlflow.note.content"]


def test_a_table_is_stored_as_pandas_splits_it(registry: Registry, domain: str, tmp_path: Path) -> None:
    run_id = registry.start_run(domain, "round", {})
    registry.log_table(run_id, {"request": ["a", "b"], "overlap": [0.5, 0.75]}, "heldout.json")
    file = Path(registry._client.download_artifacts(run_id, "heldout.json", str(tmp_path)))
    assert json.loads(file.read_text()) == {
        "columns": ["request", "overlap"],
        "data": [["a", 0.5], ["b", 0.75]],
    }


def test_artifacts_lie_beside_the_database_not_in_the_working_directory(
    registry: Registry, domain: str
) -> None:
    run_id = registry.start_run(domain, "round", {})
    root = Path(registry.tracking_uri.removeprefix("sqlite:///")).parent
    assert registry._client.get_run(run_id).info.artifact_uri.startswith((root / "artifacts").as_uri())


def test_a_repeated_round_goes_on_in_its_run(registry: Registry, domain: str) -> None:
    first = registry.start_run(domain, "round", {"rank": 8}, {"round_id": "same"})
    registry.end_run(first, "KILLED")
    again = registry.start_run(domain, "round", {"rank": 16, "alpha": 32}, {"round_id": "same"})
    run = registry._client.get_run(again)
    assert again == first
    assert run.info.status == "RUNNING"
    assert run.data.params == {"rank": "8", "alpha": "32"}


def test_more_parameters_and_metrics_than_one_batch_holds(registry: Registry, domain: str) -> None:
    run_id = registry.start_run(domain, "round", {f"p{i}": i for i in range(250)})
    registry.log_metrics(run_id, {f"m{i}": i for i in range(250)})
    data = registry._client.get_run(run_id).data
    assert (len(data.params), len(data.metrics)) == (250, 250)


def test_a_deleted_experiment_is_explained(registry: Registry, domain: str) -> None:
    run_id = registry.start_run(domain, "round", {})
    registry._client.delete_experiment(registry._client.get_run(run_id).info.experiment_id)
    with pytest.raises(RegistryError, match="mlflow experiments restore"):
        registry.start_run(domain, "round", {})


def test_identifiers_cannot_break_out_of_a_search(registry: Registry, domain: str) -> None:
    with pytest.raises(RegistryError, match="must be letters"):
        registry.version_of_round(domain, "x' OR name LIKE '%")


def test_a_run_names_what_it_read_and_how_it_ended(registry: Registry, domain: str) -> None:
    run_id = registry.start_run(domain, "round", {})
    source = {"after_id": None, "last_id": "9-0", "part": "train"}
    data = RunData("faq training samples", "training", source, {"requests": 3})
    registry.log_data(run_id, [data])
    registry.log_data(run_id, [data])
    registry.note_run(run_id, "no version: failed", "**Failed.** out of memory")
    run = registry._client.get_run(run_id)
    (read,) = run.inputs.dataset_inputs
    assert (read.dataset.name, json.loads(read.dataset.source)) == ("faq training samples", source)
    assert read.tags[0].value == "training"
    assert run.info.run_name == "no version: failed"
    assert run.data.tags["mlflow.note.content"] == "**Failed.** out of memory"
    experiment = registry._client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
