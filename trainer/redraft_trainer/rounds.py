"""One training round of one domain, from a range of the stream to a settled version.

1 take the domain's lock            5 distil and measure, in a process of its own
2 settle what a killed round left   6 the gate decides on two reports
3 fix the range                     7 register a pending version with all its evidence
4 part its samples by prompt        8 move the alias, mark the version approved or rejected, tell the workers

Each step may be the last one before a crash. Before 7 nothing exists outside of the round's folder but an
unfinished run, and the cursor, which is the newest version's tags, has not moved; after it the same round
settles the version.
"""

from __future__ import annotations

import gc
import logging
import shutil
import time
from collections.abc import Mapping
from typing import Any

from redraft_models.registry import VersionInfo
from redraft_queue.load import serving_load
from redraft_queue.lock import RoundLock
from redraft_queue.stream import SampleStream

from redraft_trainer import evidence
from redraft_trainer.context import Progress, RoundResult, TrainContext
from redraft_trainer.datasets import log_data
from redraft_trainer.errors import DiskFull, LockLost, RoundTimeout
from redraft_trainer.failures import DISK_ADVICE, disk_is_full
from redraft_trainer.folders import sweep
from redraft_trainer.gate import decide
from redraft_trainer.identity import Identity, identify
from redraft_trainer.plan import Collected, Plan, collect, load_plan, make_plan, save_plan
from redraft_trainer.process import run_child
from redraft_trainer.reports import MeasureReport
from redraft_trainer.room import Room
from redraft_trainer.settling import settle
from redraft_trainer.sharing import other_reports, others_metrics, others_tag
from redraft_trainer.spec import write_spec
from redraft_trainer.stages import Stages
from redraft_trainer.trying import on_trial

logger = logging.getLogger(__name__)


def run_round(
    context: TrainContext,
    domain: str,
    round_id: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> RoundResult:
    """Run a round, or find it done; `force` trains also on fewer new tokens than `min_new_tokens`.

    Raises LockHeld while another round of the domain runs, RoundFailed where the training failed, and what
    the stream, the registry and the models raise. In all these cases no version is registered.
    """
    lock = RoundLock(context.client, domain, round_id, context.queue.lock_ttl_seconds)
    try:
        with lock:
            return _Round(context, domain, round_id, lock, progress or _unseen).run(force)
    except OSError as error:
        if disk_is_full(error):
            shutil.rmtree(context.work_dir(round_id), ignore_errors=True)
            where = context.data_dir
            raise DiskFull(f"the disk of {where} is full ({error.strerror}): {DISK_ADVICE}") from error
        raise
    finally:
        # Pictures hold their pixels in reference cycles, which a worker that mostly waits collects too late.
        gc.collect()


def _unseen(_: Mapping[str, Any]) -> None:
    """Progress that nobody follows."""


class _Round:
    """The steps of a round and what they share."""

    def __init__(
        self, context: TrainContext, domain: str, round_id: str, lock: RoundLock, progress: Progress
    ) -> None:
        self.context, self.domain, self.round_id = context, domain, round_id
        self.lock, self.progress = lock, progress
        self.registry = context.registry
        self.stream = SampleStream(context.client, context.queue)
        self.folder = context.work_dir(round_id)
        self.started = time.monotonic()
        self.stages = Stages()

    def run(self, force: bool) -> RoundResult:
        """All steps."""
        self._settle_leftovers()
        done = self.registry.version_of_round(self.domain, self.round_id)
        if done is not None:
            return self._finish(done)
        sweep(self.folder, self.domain)
        plan = self._plan()
        reason = on_trial(self.context, self.domain) or (None if force else self._too_few(plan))
        if reason is not None:
            return self._skip(reason, plan)
        self.progress({"stage": "collect", "new_tokens": plan.new_tokens})
        with self.stages.timed("collect"):
            identity = identify(self.context.models, self.context.cache_dir)
            found = self._collect(plan, identity)
        lacking = self._lacking(found)
        if lacking is not None:
            return self._skip(lacking, plan)
        return self._train(plan, found, identity)

    def _settle_leftovers(self) -> None:
        for info in self.registry.pending(self.domain):
            logger.info("settling version %d of domain %s, left by a killed round", info.version, self.domain)
            settle(self.context, info)

    def _too_few(self, plan: Plan) -> str | None:
        wanted = self.context.queue.min_new_tokens
        if plan.new_tokens >= wanted:
            return None
        return f"{plan.new_tokens} new tokens are fewer than min_new_tokens, {wanted}"

    def _plan(self) -> Plan:
        """The range, the same at each delivery of this round while no other one has moved the cursor."""
        plan = load_plan(self.folder)
        cursor = self.registry.cursor(self.domain)
        tags = cursor.tags if cursor is not None else {}
        fresh = make_plan(self.stream, self.domain, tags, self.context.shared_by(self.domain))
        if plan is None or plan.after_id != fresh.after_id:
            plan = fresh
            save_plan(plan, self.folder)
        if plan.lost:
            logger.warning("%d samples of domain %s were trimmed unseen", plan.lost, self.domain)
        return plan

    def _collect(self, plan: Plan, identity: Identity) -> Collected:
        def tick(entries: int) -> None:
            self._check_lock()
            self._seconds_left()
            self.progress({"stage": "collect", "step": entries, "total": plan.new_entries})

        settings = self.context.trainer
        return collect(self.stream, plan, self.folder, settings, identity.target, identity.tokenizer, tick)

    def _lacking(self, found: Collected) -> str | None:
        """Why this range can't be trained on yet; its samples stay, so a later round has more."""
        gate = self.context.gate
        if not found.requests["new"]:
            return (
                f"none of {found.tally.entries} new samples can be trained on {evidence.why(found)}".strip()
            )
        requests, tokens = found.requests["heldout"], found.tokens["heldout"]
        if requests < gate.min_heldout_requests or tokens < gate.min_heldout_tokens:
            need = f"{gate.min_heldout_requests} and {gate.min_heldout_tokens}"
            return f"{requests} held-out requests with {tokens} tokens are fewer than the gate needs, {need}"
        return None

    def _skip(self, reason: str, plan: Plan) -> RoundResult:
        logger.info("round %s of domain %s is skipped: %s", self.round_id, self.domain, reason)
        shutil.rmtree(self.folder, ignore_errors=True)
        return RoundResult.skipped(reason, plan.last_tokens)

    def _train(self, plan: Plan, found: Collected, identity: Identity) -> RoundResult:
        """Steps 5 to 8, inside a run that tells how they went."""
        champion = self.registry.champion(self.domain)
        params = evidence.params(self.context, plan, found, champion)
        run_id = self.registry.start_run(self.domain, self.round_id, params, {"round_id": self.round_id})
        try:
            log_data(self.registry, run_id, plan, found)
            write_spec(self.context, self.folder, self.round_id, plan, identity, champion)
            with self.stages.timed("child"):
                result = self._child()
            version = self._register(run_id, plan, found, identity, champion, result)
        except BaseException as error:
            evidence.close_failed(self.registry, run_id, error, self.folder)
            raise
        return self._finish(version)

    def _child(self) -> dict[str, Any]:
        # A candidate of an earlier delivery stands in the way of this one's.
        shutil.rmtree(self.folder / "candidate", ignore_errors=True)
        return run_child(
            self.folder,
            self.context.trainer,
            device=self.context.trainer.device or self.context.models.device,
            progress=self.progress,
            check=self._check_lock,
            limit_seconds=self._seconds_left(),
            room=Room(self.context.trainer, lambda: serving_load(self.context.client)),
        )

    def _seconds_left(self) -> float:
        limit = self.context.queue.round_time_limit_seconds
        left = limit - (time.monotonic() - self.started)
        if left <= 0:
            raise RoundTimeout(f"the round took more than {limit} s; raise round_time_limit_seconds")
        return left

    def _check_lock(self) -> None:
        if self.lock.lost.is_set():
            raise LockLost(
                f"round {self.round_id} lost the lock of domain {self.domain}, so another round may run; "
                "check that Redis is reachable from the training worker"
            )

    def _register(
        self,
        run_id: str,
        plan: Plan,
        found: Collected,
        identity: Identity,
        champion: VersionInfo | None,
        result: dict[str, Any],
    ) -> VersionInfo:
        """The gate, then a pending version that carries the decision and all that led to it."""
        self.progress({"stage": "register"})
        reports = [MeasureReport.from_dict(result[name]) for name in ("champion", "candidate")]
        others = other_reports(result)
        decision = decide(reports[0], reports[1], self.context.gate, others)
        evidence.log_training(self.registry, run_id, result, decision)
        evidence.log_measurements(self.registry, run_id, self.domain, reports[0], reports[1])
        self.registry.log_metrics(run_id, {**others_metrics(others), **self.stages.metrics(result)})
        self.registry.log_artifacts(run_id, self.folder / "candidate", "version")
        tags = {
            **decision.tags(),
            **evidence.tags(self.round_id, plan, found, identity, champion, result),
            "other_domains": others_tag(others, self.context.gate),
            "validation_status": "pending",
        }
        self._check_lock()
        number = self.registry.register(self.domain, run_id, tags)
        return self.registry.version(self.domain, number)

    def _finish(self, info: VersionInfo) -> RoundResult:
        """Settle the round's own version; its folder goes last, so that it tells whether the run was
        closed.
        """
        result = RoundResult.of_version(settle(self.context, info))
        if self.folder.exists():
            evidence.close(self.registry, info.run_id, self.domain)
            shutil.rmtree(self.folder, ignore_errors=True)
        return result
