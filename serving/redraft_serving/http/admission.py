"""What is settled of a request before its prompt is read: may it run, whose is it, which draft serves it."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from redraft_queue.records import user_hash

from redraft_serving.engine.interface import CHAMPION, Arm
from redraft_serving.http.amounts import check_amount
from redraft_serving.http.context import Context
from redraft_serving.http.domains import DOMAIN_HEADER
from redraft_serving.http.errors import BadRequest, Unavailable
from redraft_serving.http.fields import refuse_unsupported
from redraft_serving.http.keys import Caller
from redraft_serving.http.schemas import GenerationBody


@dataclass(frozen=True, slots=True)
class Admission:
    """One request that may run."""

    caller: Caller
    domain: str
    arm: Arm
    capture: bool
    """False where the request, its key or its domain says that nothing is kept."""
    user: str | None
    """Hash of the request's `user`."""
    name: str
    """The request's X-Request-Id."""
    deadline: float
    """When it has to be over, in `time.monotonic`."""


def admit(request: Request, body: GenerationBody, context: Context) -> Admission:
    """Every check that needs no prompt. Raises ApiError."""
    if context.draining:
        raise Unavailable("The server is stopping; try another one.")
    context.model.check_name(body.model)
    refuse_unsupported(body.model_extra)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options may be given only where stream is true.", "stream_options")
    check_amount(body, context)
    caller: Caller = request.state.caller
    domain = context.domains.resolve(caller.domain(request.headers.get(DOMAIN_HEADER)))
    name: str = request.state.request_id
    kept = body.store is not False and caller.store and domain not in context.settings.no_store_domains
    return Admission(
        caller=caller,
        domain=domain,
        arm=CHAMPION if context.trials is None else context.trials.arm_of(domain, name),
        capture=kept,
        user=user_hash(body.user) if body.user else None,
        name=name,
        deadline=request.state.arrived + context.settings.request_seconds,
    )
