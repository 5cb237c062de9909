"""Writing the run of a training round: parameters, curves, pictures, tables, files.

Every call names its run, so nothing here depends on the "active run" of a thread.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from redraft_models.errors import RegistryError
from redraft_models.registry_connection import Connection, already_exists
from redraft_models.registry_names import NOTE, checked_identifier, experiment_name
from redraft_models.registry_text import experiment_description

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mlflow.entities import DatasetInput

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

_TABLES = "mlflow.loggedArtifacts"
_BATCH = 100
_DIGEST = 12
_KIND = "mlflow.experimentKind"


@dataclass(frozen=True)
class RunData:
    """What a run read, for the column *Dataset* of MLflow's table of runs.

    `source` and `profile` are plain values; equal sources get equal digests, so runs on one range are found.
    """

    name: str
    context: Literal["training", "eval"]
    source: Mapping[str, object]
    profile: Mapping[str, object]


class Runs(Connection):
    """Writes: tried again while the server fails quickly; raise RegistryError, RegistryUnavailable when it
    stays away.
    """

    def start_run(
        self, domain: str, name: str, params: Mapping[str, object], tags: Mapping[str, object] | None = None
    ) -> str:
        """Id of a running run in the domain's experiment (made if missing).

        With a tag `round_id`, a repeated round goes on in the run it had, so that one round is one run;
        parameters that are already there stay.
        """
        experiment = self._experiment(domain)
        values = {str(key): str(value) for key, value in (tags or {}).items()}
        run_id = self._run_of_round(experiment, values.get("round_id"))
        if run_id is None:
            values["mlflow.source.name"] = "redraft"
            run_id = self._write(
                "create a run",
                lambda: str(self._client.create_run(experiment, tags=values, run_name=name).info.run_id),
            )
        else:
            known = run_id
            self._write("reopen a run", lambda: self._client.update_run(known, status="RUNNING"))
        self.log_params(run_id, params)
        return run_id

    def log_params(self, run_id: str, params: Mapping[str, object]) -> None:
        """Parameters of a run; those that it has already are left alone, as MLflow refuses to change one."""
        from mlflow.entities import Param

        present = self._read("read a run", lambda: self._client.get_run(run_id)).data.params
        fresh = [Param(key, str(value)) for key, value in params.items() if key not in present]
        for batch in _batches(fresh):
            self._write("log parameters", partial(self._client.log_batch, run_id, params=batch))

    def log_metrics(self, run_id: str, metrics: Mapping[str, float | None], step: int = 0) -> None:
        """One point on each curve. None and values that are not finite are left out: a gap, not a zero."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [
            Metric(key, float(value), now, step)
            for key, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]
        for batch in _batches(points):
            self._write("log metrics", partial(self._client.log_batch, run_id, metrics=batch))

    def log_artifacts(self, run_id: str, folder: Path, artifact_path: str | None = None) -> None:
        """All files of a folder, under `artifact_path` among the run's artifacts."""
        self._write("store artifacts", lambda: self._client.log_artifacts(run_id, str(folder), artifact_path))

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """A text file (Markdown and HTML are rendered by MLflow's UI)."""
        self._write("store a text", lambda: self._client.log_text(run_id, text, artifact_file))

    def log_figure(self, run_id: str, figure: "Figure", artifact_file: str) -> None:
        """A picture; the suffix of `artifact_file` decides the format."""
        self._write("store a picture", lambda: self._client.log_figure(run_id, figure, artifact_file))

    def log_table(self, run_id: str, columns: Mapping[str, Sequence[Any]], artifact_file: str) -> None:
        """A table by columns of one length, shown as such by MLflow's UI; `artifact_file` ends in .json.

        Replaces an earlier table of that name. The tag is how MLflow's UI knows a table from any JSON.
        """
        data = {"columns": list(columns), "data": [list(row) for row in zip(*columns.values(), strict=True)]}
        self._write("store a table", lambda: self._client.log_dict(run_id, data, artifact_file))
        tags = self._read("read a run", lambda: self._client.get_run(run_id)).data.tags
        listed = [entry for entry in json.loads(tags.get(_TABLES, "[]")) if entry["path"] != artifact_file]
        listed.append({"path": artifact_file, "type": "table"})
        self._write("tag a run", lambda: self._client.set_tag(run_id, _TABLES, json.dumps(listed)))

    def log_data(self, run_id: str, data: Sequence[RunData]) -> None:
        """Name what a run read."""
        inputs = [_dataset_input(one) for one in data]
        self._write("name what was read", lambda: self._client.log_inputs(run_id, inputs))

    def note_run(self, run_id: str, name: str, text: str) -> None:
        """Name and description (Markdown) of a run."""
        self._write("name a run", lambda: self._client.update_run(run_id, name=name))
        self._write("note a run", lambda: self._client.set_tag(run_id, NOTE, text))

    def end_run(self, run_id: str, status: RunStatus = "FINISHED") -> None:
        """Close a run."""
        self._write("end a run", lambda: self._client.set_terminated(run_id, status))

    def _experiment(self, domain: str) -> str:
        name = experiment_name(domain)
        experiment = self._read("read an experiment", lambda: self._client.get_experiment_by_name(name))
        if experiment is None:
            return self._write("create an experiment", lambda: self._create_experiment(domain))
        if experiment.lifecycle_stage != "active":
            raise RegistryError(
                f"The experiment {name} was deleted; bring it back with "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`."
            )
        stale = {key: value for key, value in _shown(domain).items() if experiment.tags.get(key) != value}
        for key, value in stale.items():
            self._write(
                "describe an experiment",
                partial(self._client.set_experiment_tag, experiment.experiment_id, key, value),
            )
        return str(experiment.experiment_id)

    def _create_experiment(self, domain: str) -> str:
        name = experiment_name(domain)
        location = (
            (self._artifact_root / f"redraft-{domain}").absolute().as_uri() if self._artifact_root else None
        )
        try:
            made = self._client.create_experiment(name, None if self.remote else location, _shown(domain))
            return str(made)
        except Exception as error:
            if already_exists(error):  # another process was faster
                return str(self._client.get_experiment_by_name(name).experiment_id)
            raise

    def _run_of_round(self, experiment: str, round_id: str | None) -> str | None:
        if round_id is None:
            return None
        condition = f"tags.round_id = '{checked_identifier(round_id)}'"
        runs = self._read(
            "find a run", lambda: self._client.search_runs([experiment], condition, max_results=1)
        )
        return str(runs[0].info.run_id) if runs else None


def _shown(domain: str) -> dict[str, str]:
    """Tags of an experiment: what it is, and that MLflow's UI opens its runs and not traces of an LLM."""
    return {NOTE: experiment_description(domain), _KIND: "custom_model_development"}


def _dataset_input(data: RunData) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps(data.source, sort_keys=True)
    dataset = Dataset(
        name=data.name,
        digest=hashlib.sha256(source.encode()).hexdigest()[:_DIGEST],
        source_type="redis_stream",
        source=source,
        profile=json.dumps(data.profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", data.context)])


def _batches(items: list[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch
