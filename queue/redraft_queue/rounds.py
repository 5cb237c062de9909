"""The training-round task: how it is asked for and looked up, and what it does around the round itself."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.result import denied_join_result
from celery.worker import state as worker_state
from kombu.exceptions import OperationalError

from redraft_queue import keys
from redraft_queue.celery_conf import QUEUE, TRAIN_ROUND
from redraft_queue.due import FAILED, OPERATOR, SKIPPED
from redraft_queue.errors import LockHeld, RoundInterrupted, StreamUnavailable
from redraft_queue.schedule import record_finished

logger = logging.getLogger(__name__)

_PROGRESS_EVERY_SECONDS = 1.0
_LOG_EVERY_SECONDS = 15.0

Progress = Callable[[Mapping[str, Any]], None]
RunRound = Callable[[str, str, bool, Progress], Mapping[str, Any]]
"""run(domain, round_id, force, progress) -> the round's result, JSON-able."""


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """`state` is Celery's: PENDING (waiting or unknown), STARTED, PROGRESS, SUCCESS, FAILURE, REVOKED.

    `details` is the last progress, or the result, or {"error": ...}.
    """

    round_id: str
    state: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True where the state won't change any more."""
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")


def request_round(
    app: Celery,
    domain: str,
    force: bool = False,
    round_id: str | None = None,
    *,
    trigger: str = OPERATOR,
    expires_seconds: float | None = None,
) -> str:
    """Ask for a training round; returns its id, which is the task's. Raises StreamUnavailable, BadName.

    `trigger` tells what asks; a round that no worker has begun after `expires_seconds` is dropped.
    """
    round_id = round_id or str(uuid.uuid4())
    kwargs = {"domain": keys.check_name(domain), "force": force, "trigger": trigger}
    try:
        # One attempt: the caller learns within the socket timeout that nobody took the request. Without the
        # context, Celery would also subscribe to the result over a second connection.
        with (
            app.connection_for_write(transport_options={"max_retries": 0}) as connection,
            denied_join_result(),
        ):
            app.send_task(
                TRAIN_ROUND,
                kwargs=kwargs,
                task_id=round_id,
                queue=QUEUE,
                connection=connection,
                retry=False,
                expires=expires_seconds,
            )
    except (redis.RedisError, OperationalError, OSError) as error:
        raise StreamUnavailable(
            f"the round could not be asked for ({error}); check that Redis runs"
        ) from error
    return round_id


def round_status(app: Celery, round_id: str) -> RoundStatus:
    """What is known about a round. Raises StreamUnavailable."""
    try:
        meta = app.backend.get_task_meta(round_id, cache=False)
    except (redis.RedisError, OSError) as error:
        raise StreamUnavailable(f"round {round_id} could not be looked up in Redis ({error})") from error
    result = meta.get("result")
    if isinstance(result, Mapping):
        return RoundStatus(round_id, meta["status"], result)
    return RoundStatus(round_id, meta["status"], {} if result is None else {"error": f"{result}"})


def stopping() -> bool:
    """True in a worker that has been told to stop."""
    # Celery's flags hold exit codes: 0 means yes, None means no.
    flags = (worker_state.should_stop, worker_state.should_terminate)
    return any(flag is not None and flag is not False for flag in flags)


def register_train_round(app: Celery, run: RunRound, client: redis.Redis | None = None) -> Task:
    """Bind the body of a round to the task.

    `run` gets the domain, the round's id (= task id, the same in each delivery), `force`, and a progress
    callback, which takes a JSON-able map, stores it as the task's state at most once a second, and raises
    RoundInterrupted when the worker is to stop: the round ends and goes back to the queue. A LockHeld from
    `run` is a skipped round; where this very round holds the lock it was delivered a second time, and the
    task leaves no trace. With `client`, the end of each round is noted in the domain's schedule.
    """

    def train_round(self: Task, domain: str, force: bool = False, trigger: str = OPERATOR) -> dict[str, Any]:
        note = _Note(client, keys.check_name(domain), self.request.id, trigger)
        return _deliver(self, run, note, force)

    return app.task(train_round, bind=True, name=TRAIN_ROUND, shared=False)


def _deliver(task: Task, run: RunRound, note: _Note, force: bool) -> dict[str, Any]:
    domain, round_id = note.domain, note.round_id
    progress = _Progress(task)
    try:
        result = dict(run(domain, round_id, force, progress))
        note.end(result)
        return result
    except LockHeld as held:
        if held.holder == round_id:
            logger.warning(
                "round %s of domain %s was delivered again while it runs; skipped", round_id, domain
            )
            raise Ignore("this round is running already") from held
        logger.info("round %s of domain %s is skipped: %s", round_id, domain, held)
        skipped = {"decision": SKIPPED, "reason": str(held)}
        note.end(skipped)
        return skipped
    except Exception as error:
        if progress.interrupted or isinstance(error, RoundInterrupted):
            logger.warning("round %s of domain %s goes back to the queue: the worker stops", round_id, domain)
            raise Reject("the worker stops", requeue=True) from error
        note.end({"decision": FAILED, "reason": f"{type(error).__name__}: {error}"})
        raise


class _Note:
    """What the schedule keeps of a round. Redis may be away: the round counts all the same."""

    def __init__(self, client: redis.Redis | None, domain: str, round_id: str, trigger: str) -> None:
        self.domain, self.round_id = domain, round_id
        self._client = client
        self._trigger = trigger
        self._tokens = self._counter()

    def end(self, result: Mapping[str, Any]) -> None:
        """Note the end; a result that tells `tokens_added`, the counter at its plan, knows better."""
        if self._client is None:
            return
        told = result.get("tokens_added")
        tokens = self._tokens if told is None else int(told)
        try:
            record_finished(
                self._client, self.domain, result, tokens, round_id=self.round_id, trigger=self._trigger
            )
        except StreamUnavailable as error:
            logger.warning("the schedule doesn't know how round %s ended: %s", self.round_id, error)

    def _counter(self) -> int:
        try:
            return int((self._client and self._client.get(keys.tokens(self.domain))) or 0)
        except redis.RedisError:
            return 0


class _Progress:
    """The progress callback. A result backend that is away must not fail the round: it is only logged."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._reported = self._logged = float("-inf")
        self.interrupted = False

    def __call__(self, update: Mapping[str, Any]) -> None:
        if stopping():
            self.interrupted = True
            raise RoundInterrupted("the worker has been told to stop")
        now = time.monotonic()
        if now - self._reported < _PROGRESS_EVERY_SECONDS:
            return
        self._reported = now
        if now - self._logged >= _LOG_EVERY_SECONDS:
            self._logged = now
            told = " ".join(f"{key}={value}" for key, value in update.items())
            logger.info("round %s: %s", self._task.request.id, told)
        try:
            self._task.update_state(state="PROGRESS", meta=dict(update))
        except (redis.RedisError, OSError) as error:
            logger.warning("the progress of round %s could not be stored: %s", self._task.request.id, error)
