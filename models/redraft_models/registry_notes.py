"""Keeping what people read in MLflow's UI in step with what happened: texts of versions, models and runs.

Nothing depends on these texts, so a failure is logged and not passed on, and nothing is tried twice.
"""

import logging
from collections.abc import Mapping
from functools import partial

from redraft_models.errors import RegistryError
from redraft_models.registry_live import live_numbers
from redraft_models.registry_names import NOTE, experiment_name, model_name
from redraft_models.registry_summary import model_description
from redraft_models.registry_text import standing, version_description
from redraft_models.registry_versions import VersionInfo
from redraft_models.registry_writes import Writes

logger = logging.getLogger(__name__)

SHOWN_VERSIONS = 10
"""Rows of the table in the registered model's text."""


class Notes(Writes):
    """Texts for people; called at the end of every move."""

    def set_tags(self, domain: str, version: int, tags: Mapping[str, object]) -> None:
        """Set tags of a version, and bring its text up to date; None removes nothing and is left out."""
        self._tag(domain, version, tags)
        self._describe(domain, version)

    def _describe(self, domain: str, *versions: int | None) -> None:
        """Renew the text of the registered model, and of the versions given with their runs."""
        for version in versions:
            if version is not None:
                self._best_effort(f"version {version} of {domain}", partial(self._note, domain, version))
        self._best_effort(f"the model of {domain}", partial(self._summarise, domain))

    def _best_effort(self, what: str, call: "partial[None]") -> None:
        try:
            call()
        except RegistryError as error:
            logger.warning("The description of %s stays as it was: %s", what, error)

    def _summarise(self, domain: str) -> None:
        model = model_name(domain)
        names = (self.aliases.champion, self.aliases.previous, self.aliases.challenger)
        held = {name: info for name in names if (info := self.alias(domain, name)) is not None}
        newest = self.versions(domain, most=SHOWN_VERSIONS)
        name = experiment_name(domain)
        runs = self._read("read an experiment", lambda: self._client.get_experiment_by_name(name))
        experiment_id = str(runs.experiment_id) if runs is not None else None
        text = model_description(domain, held, newest, self.aliases, experiment_id)
        self._attempt("describe a model", partial(self._client.update_registered_model, model, text))

    def _note(self, domain: str, version: int) -> None:
        info = self.version_or_none(domain, version)
        if info is None:
            return
        text = version_description(info)
        self._attempt(
            "describe a version",
            partial(self._client.update_model_version, model_name(domain), str(version), text),
        )
        if info.run_id:
            self._note_run(info, text)

    def _note_run(self, info: VersionInfo, text: str) -> None:
        """Name, note, tags and late numbers of the run, so that the table of runs tells the decisions."""
        import time

        from mlflow.entities import Metric, RunTag

        known = self._read_or_none("read a run", lambda: self._client.get_run(info.run_id))
        if known is None:
            return
        now = int(time.time() * 1000)
        tags = {NOTE: text, "version": str(info.version), "outcome": standing(info.tags)}
        metrics = [
            Metric(key, value, now, 0)
            for key, value in live_numbers(info.tags).items()
            if known.data.metrics.get(key) != value
        ]
        self._attempt(
            "name a run",
            partial(
                self._client.update_run, info.run_id, name=f"version {info.version}: {standing(info.tags)}"
            ),
        )
        self._attempt(
            "note a run",
            partial(
                self._client.log_batch,
                info.run_id,
                metrics=metrics,
                tags=[RunTag(key, value) for key, value in tags.items()],
            ),
        )
