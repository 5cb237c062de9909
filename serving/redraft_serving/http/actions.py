"""POST /v1/drafts/{domain}/promote, /rollback and /train: for operators, under the admin key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from redraft_serving.actions import ActionConflict, Actions, ActionUnavailable, Moved, UnknownVersion
from redraft_serving.http.context import Context, ContextDep
from redraft_serving.http.errors import Conflict, DomainNotFound, Unavailable, VersionNotFound
from redraft_serving.http.keys import Caller, CallerDep

logger = logging.getLogger(__name__)
router = APIRouter()

T = TypeVar("T")
_MOST_VERSIONS = 2**31 - 1


class PromoteBody(BaseModel):
    """Which version is to serve."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=1, le=_MOST_VERSIONS)


class RollbackBody(BaseModel):
    """Where to go back to."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: int | None = Field(None, ge=0, le=_MOST_VERSIONS)
    """A version, 0 for the base draft, null for the one before."""
    reason: str | None = Field(None, min_length=1, max_length=500)
    """Written on the version that is left."""


class TrainBody(BaseModel):
    """Nothing to choose, but a JSON body all the same: no page of another site can send one unasked."""

    model_config = ConfigDict(extra="forbid", strict=True)


# Plain functions: FastAPI runs them in threads, and the registry may take its time.


@router.post("/v1/drafts/{domain}/promote")
def promote(domain: str, body: PromoteBody, context: ContextDep, caller: CallerDep) -> dict[str, Any]:
    """Make a version the champion; every worker follows within its poll time."""
    actions = _actions(domain, context)
    moved = _translated(lambda: actions.promote(domain, body.version))
    return _told(moved, caller, "promoted")


@router.post("/v1/drafts/{domain}/rollback")
def rollback(domain: str, body: RollbackBody, context: ContextDep, caller: CallerDep) -> dict[str, Any]:
    """Serve an earlier version again, or the base draft."""
    actions = _actions(domain, context)
    reason = body.reason or "rolled back by hand"
    moved = _translated(lambda: actions.rollback(domain, body.to, reason))
    return _told(moved, caller, "rolled back")


@router.post("/v1/drafts/{domain}/train")
def train(domain: str, _: TrainBody, context: ContextDep, caller: CallerDep) -> dict[str, Any]:
    """Ask for a training round now; whether it is worth one is not asked."""
    actions = _actions(domain, context)
    round_id = _translated(lambda: actions.train(domain))
    logger.info("domain %s: training round %s asked for by key %s", domain, round_id, caller.name)
    return {"domain": domain, "round_id": round_id}


def _actions(domain: str, context: Context) -> Actions:
    """Raises DomainNotFound or Unavailable."""
    known = context.domains.names()
    if domain not in known:
        raise DomainNotFound(domain, known)
    if context.actions is None:
        raise Unavailable("This worker runs without a registry, so there are no versions to choose.")
    return cast(Actions, context.actions)


def _translated(action: Callable[[], T]) -> T:
    try:
        return action()
    except UnknownVersion as error:
        raise VersionNotFound(str(error), "version") from error
    except ActionConflict as error:
        raise Conflict(str(error)) from error
    except ActionUnavailable as error:
        raise Unavailable(str(error)) from error


def _told(moved: Moved, caller: Caller, what: str) -> dict[str, Any]:
    logger.info(
        "domain %s %s from %s to %s by key %s", moved.domain, what, moved.left, moved.now, caller.name
    )
    return {"domain": moved.domain, "from": moved.left, "to": moved.now}
