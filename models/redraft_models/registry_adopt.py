"""A new domain begins with another domain's champion, copied once.

MLflow has no lock, but two of its calls decide between rivals: of all who create a registered model one
succeeds, and versions get rising numbers. So the creator copies while the others wait a little; if it died,
the next one copies, and where two did so after all, the lowest version is the one and the others are
deleted. A version is made after its files, so each that exists is whole.
"""

import logging
import tempfile
import time
from functools import partial
from pathlib import Path

from redraft_models.errors import AdapterRejected
from redraft_models.registry_names import ADOPTED_FROM, PENDING, STATUS, VERSION_ARTIFACT, model_name
from redraft_models.registry_prune import Pruning
from redraft_models.registry_runs import Runs
from redraft_models.registry_versions import VersionInfo

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0
"""How long a domain's model may be without a version before somebody else copies."""

_POLL_SECONDS = 0.25
_COPIED_TAGS = (
    "target_fingerprint",
    "tokenizer_fingerprint",
    "base_draft_fingerprint",
    "sha256",
    "head_sha256",
    "head_size",
    "checksum",
    "precision_effective",
)
"""What holds for the files wherever they are; measurements and the stream's range belong to the source."""


class Adoption(Pruning, Runs):
    """Copying a champion into a domain that has nothing of its own."""

    def adopt(
        self, domain: str, source_domain: str, patience_seconds: float = PATIENCE_SECONDS
    ) -> VersionInfo | None:
        """Give a new domain a copy of the source's champion, and return the domain's champion.

        Does nothing for a domain that has any version, or was rolled back to its base draft. None where the
        domain serves its base draft afterwards, as when the source does so too or its files are not whole.
        Safe to call from several workers at once and after a death at any point.
        """
        champion = self.champion(domain)
        if champion is not None and not _half_adopted(champion):
            return champion
        if domain == source_domain:
            return None
        if self._copies(domain):
            return self._finish_adoption(domain)
        if self.newest(domain) is not None or self.champion_is_base(domain):
            return None
        source = self.champion(source_domain)
        if source is None or not source.ready:
            return None
        if not self._ensure_model(domain) and self._somebody_copied(domain, patience_seconds):
            return self._finish_adoption(domain) if self._copies(domain) else self.champion(domain)
        return self._finish_adoption(domain) if self._copy(domain, source) else None

    def _somebody_copied(self, domain: str, patience_seconds: float) -> bool:
        """Wait while the model is so young that its maker may be copying still."""
        model = self._read("read a model", lambda: self._client.get_registered_model(model_name(domain)))
        age = max(0.0, time.time() - int(model.creation_timestamp or 0) / 1000)
        deadline = time.monotonic() + patience_seconds - age
        while (found := self.newest(domain)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return found is not None

    def _copy(self, domain: str, source: VersionInfo) -> bool:
        """Make a run, the files and a pending version; False where the source's files are not whole."""
        origin = f"{model_name(source.domain)}/{source.version}"
        with tempfile.TemporaryDirectory(prefix="redraft-adopt-") as folder:
            try:
                files = self.download(source.domain, source.version, Path(folder))
            except AdapterRejected as error:
                logger.warning("domain %s can't begin with %s: %s", domain, origin, error)
                return False
            params = {ADOPTED_FROM: origin}
            run_id = self.start_run(domain, f"copy of {origin}", params, {ADOPTED_FROM: origin})
            self.log_artifacts(run_id, files, VERSION_ARTIFACT)
        tags = {
            **{key: source.tags[key] for key in _COPIED_TAGS if key in source.tags},
            ADOPTED_FROM: origin,
            "parent_version": "base",
            "decision": "promoted",
            "decision_reason": f"Copied from version {source.version} of the domain {source.domain}, its "
            "champion when traffic of this domain first appeared.",
            STATUS: PENDING,
        }
        self._write("register a version", partial(self._register_once, domain, run_id, tags))
        self.end_run(run_id)
        return True

    def _copies(self, domain: str) -> list[VersionInfo]:
        """Copies that were made for the domain, lowest number first."""
        return self._search(domain, f"tag.{ADOPTED_FROM} LIKE 'redraft-%'")[::-1]

    def _finish_adoption(self, domain: str) -> VersionInfo | None:
        """Settle the lowest copy, delete the others."""
        copies = self._copies(domain)
        for info in copies[:1]:
            self.settle(domain, info.version)
        self._discard(info for info in copies[1:] if info.validation_status == PENDING)
        return self.champion(domain)


def _half_adopted(champion: VersionInfo) -> bool:
    """Whether a worker died after it had moved the alias to a copy."""
    return ADOPTED_FROM in champion.tags and champion.validation_status == PENDING
