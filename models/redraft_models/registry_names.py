"""Names in MLflow: one place that says how a domain maps to an experiment, a registered model and aliases."""

import re
from dataclasses import dataclass

from redraft_models.errors import RegistryError

VERSION_ARTIFACT = "version"
"""Folder among a run's artifacts that holds what a version is made of: `adapter/` and `provenance.json`."""

NOTE = "mlflow.note.content"
"""Tag of a run or an experiment that MLflow's UI shows as its description."""

CHAMPION_IS_BASE = "champion_is_base"
"""Tag of the registered model: "true" after a rollback to the base draft, which no alias can point at."""

STATUS = "validation_status"
PENDING, APPROVED, REJECTED = "pending", "approved", "rejected"

CANARY = "canary"
"""Tag of an approved candidate that serves a share of the traffic, and how that ended."""

RUNNING, PASSED, FAILED, UNDECIDED = "running", "passed", "failed", "undecided"
OVERTAKEN, SKIPPED = "overtaken", "skipped"
"""The champion changed while the canary ran; promoted before the canary had begun."""

CANARY_STARTED = "canary_started_ms"
GATE_REASON = "gate_reason"
"""Why the gate approved a version, kept when a later event writes its own `decision_reason`."""

ADOPTED_FROM = "adopted_from"
"""Tag of a version that was copied from another domain: `<model>/<version>`."""

PRUNING = "pruning"
"""Tag of a version whose files are being deleted; it must not serve any more."""

_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,255}")
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)


def model_name(domain: str) -> str:
    """Registered model of a domain; raises RegistryError if the domain is not a plain name."""
    return f"redraft-{_checked_domain(domain)}"


def experiment_name(domain: str) -> str:
    """Experiment of a domain; raises RegistryError if the domain is not a plain name."""
    return f"redraft/{_checked_domain(domain)}"


def domain_of(model: str) -> str | None:
    """The domain of a registered model's name, or None if the model is not one of ours."""
    prefix, _, domain = model.partition("-")
    return domain if prefix == "redraft" and _DOMAIN.fullmatch(domain) else None


def _checked_domain(domain: str) -> str:
    if not _DOMAIN.fullmatch(domain):
        raise RegistryError(
            f"The domain {domain!r} cannot be used; take 1 to 64 letters, digits, dots, underscores or "
            "dashes, "
            "beginning with a letter or digit."
        )
    return domain


def checked_identifier(value: str) -> str:
    """A value that may stand inside a search filter; raises RegistryError otherwise."""
    if not _IDENTIFIER.fullmatch(value):
        raise RegistryError(
            f"The identifier {value!r} must be letters, digits, dots, colons, dashes or underscores."
        )
    return value


@dataclass(frozen=True)
class Aliases:
    """The three aliases of a registered model. Raises RegistryError for names that MLflow would refuse."""

    champion: str = "champion"
    challenger: str = "challenger"
    previous: str = "previous"

    def __post_init__(self) -> None:
        names = (self.champion, self.challenger, self.previous)
        for name in names:
            _check_alias(name)
        if len(set(names)) < len(names):
            raise RegistryError(f"The aliases {', '.join(names)} must be three different names.")


def _check_alias(name: str) -> None:
    if _RESERVED.fullmatch(name):
        raise RegistryError(
            f"The alias {name!r} is reserved by MLflow (latest, v<number>); choose another name."
        )
    if not _ALIAS.fullmatch(name):
        raise RegistryError(f"The alias {name!r} is not valid; use letters, digits, underscores and dashes.")
