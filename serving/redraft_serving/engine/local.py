"""The engine in this process: one inference thread owns both models and all rows.

Life of a request: (1) `submit` queues it; (2) it gets a slot and its prompt is read; (3) rounds of draft,
verify, accept, commit; (4) each round's text goes to the sink; (5) at its end the slot is freed and one
sample is offered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace

import torch
from redraft_models.adapter import Adapter
from redraft_models.apart import apart
from redraft_models.loading import ModelPair

from redraft_serving.engine.batch import Batch, SampleSink
from redraft_serving.engine.calibration import calibrate
from redraft_serving.engine.interface import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    Arm,
    EmissionSink,
    EngineDead,
    EngineFull,
    EngineStatistics,
    GenerationRequest,
    SwapResult,
    domain_and_arm,
    lane,
)
from redraft_serving.engine.ledger import Ledger, version_of
from redraft_serving.engine.parts import Parts
from redraft_serving.engine.rows import Row, new_row
from redraft_serving.engine.weight_sets import BASE, PreparedSwap, ServingDraft
from redraft_serving.policy.types import PolicyReport, Setting
from redraft_serving.settings import ServingSettings
from redraft_serving.text import TextStream

log = logging.getLogger(__name__)

SWAP_SECONDS = 600.0
"""Longest wait for a swap to find its place between two rounds."""


class LocalEngine:
    """Implements the `Engine` interface over a target and a draft loaded in this process."""

    def __init__(
        self, pair: ModelPair, settings: ServingSettings, on_sample: SampleSink | None = None
    ) -> None:
        self.pair = pair
        self.max_model_len = pair.max_model_len
        self.max_num_seqs, self.max_waiting = settings.max_num_seqs, settings.max_waiting
        self.num_speculative_tokens: Setting = settings.num_speculative_tokens
        fixed = 0 if self.num_speculative_tokens == "auto" else self.num_speculative_tokens
        self.max_speculative_tokens = max(settings.max_speculative_tokens, fixed)
        self.parts = apart(lambda: Parts(pair, settings, self._setting_of))
        self.proposer, self.policy = self.parts.proposer, self.parts.policy
        self.ledger = Ledger()
        self.batch = Batch(
            pair, self.parts.rounds, self.parts.prefill, self.ledger, settings.capture_top_k, on_sample
        )
        self._domain_settings: dict[str, Setting] = {}
        self._waiting: deque[Row] = deque()
        self._cancelled: set[str] = set()
        self._swaps: deque[tuple[PreparedSwap, Future[SwapResult]]] = deque()
        self._swap_lock = threading.Lock()
        self._wake = threading.Condition()
        self._stopping = False
        self._idle_seconds = self._prefill_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="redraft-inference", daemon=True)

    def _setting_of(self, row: Row) -> Setting:
        asked = row.request.num_speculative_tokens
        if asked is not None:
            return asked
        return self._domain_settings.get(row.request.domain, self.num_speculative_tokens)

    # The interface, on any thread.

    def start(self) -> None:
        """Start the inference thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the inference thread has ended."""
        return self._thread.is_alive() and not self._stopping

    def submit(self, request: GenerationRequest, sink: EmissionSink) -> None:
        """Queue a request. Raises EngineFull where slots and queue are taken, EngineDead after the end."""
        text = TextStream(
            self.pair.tokenizer,
            request.stop,
            request.include_stop_str_in_output,
            request.skip_special_tokens,
            request.min_tokens,
        )
        row = new_row(request, sink, text)
        row.coupled = request.sampling.seed is not None and not row.greedy and self._setting_of(row) == "auto"
        with self._wake:
            if not self.alive:
                raise EngineDead("the inference thread has ended; restart the worker")
            if self.batch.running + len(self._waiting) >= self.max_num_seqs + self.max_waiting:
                raise EngineFull(len(self._waiting))
            self._waiting.append(row)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """End all choices of a request within one round. Unknown ids are ignored."""
        with self._wake:
            self._cancelled.add(request_id)
            self._wake.notify()

    def swap(
        self, domain: str, adapter: Adapter | None, version: int | str, arm: Arm = CHAMPION
    ) -> Future[SwapResult]:
        """Compute weights here, install them between two rounds. The future may hold AdapterRejected.

        The call returns once the swap is installed or has failed, so that one swap follows the other. One
        that found no place within SWAP_SECONDS is cancelled, and never installed.
        """
        future: Future[SwapResult] = Future()
        with self._swap_lock:
            try:
                swap = apart(lambda: self.proposer.prepare(lane(domain, arm), adapter, version))
                self._enqueue(swap, future)
            except Exception as error:
                future.set_exception(error)
            wait((future,), timeout=SWAP_SECONDS)
            future.cancel()
        return future

    def retire(self, domain: str, arm: Arm) -> None:
        """Take an arm away between two rounds; its requests in flight go on with the champion."""
        if arm == CHAMPION:
            raise ValueError("a domain's champion can be swapped, not retired")
        with suppress(EngineDead):
            self._enqueue(PreparedSwap(lane(domain, arm), BASE, None), Future())

    def _enqueue(self, swap: PreparedSwap, future: Future[SwapResult]) -> None:
        with self._wake:
            if not self.alive:
                raise EngineDead("the inference thread has ended; restart the worker")
            self._swaps.append((swap, future))
            self._wake.notify()

    def configure(self, domain: str, num_speculative_tokens: Setting | None) -> None:
        """Change a domain's setting from the next round on; None: back to the worker's own."""
        if num_speculative_tokens is None:
            self._domain_settings.pop(domain, None)
        else:
            self._domain_settings[domain] = num_speculative_tokens
        now = self._domain_settings.get(domain, self.num_speculative_tokens)
        for arm in (CHAMPION, CHALLENGER, PREVIOUS):
            self.policy.configure(lane(domain, arm), now)
        with self.ledger.lock:
            self.ledger.of(domain, version_of(self.proposer, domain))

    def statistics(self) -> EngineStatistics:
        """A consistent snapshot."""
        found = self.ledger.snapshot(self.batch.running, len(self._waiting), self._lane_view)
        seconds = {
            **self.parts.rounds.seconds,
            "prefill": self._prefill_seconds,
            "idle": self._idle_seconds,
        }
        return replace(found, seconds=seconds, memory=self.parts.memory())

    def _lane_view(self, lane: str) -> tuple[ServingDraft | None, PolicyReport]:
        return self.proposer.serving(lane), self.policy.report(lane)

    def stop(self) -> None:
        """End the inference thread; requests in flight finish with 'abort'."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=60)

    # The inference thread.

    def _run(self) -> None:
        with torch.inference_mode():
            try:
                self._serve()
            except Exception:
                log.exception("the inference thread ends; the worker has to be restarted")
            self._end_all()

    def _serve(self) -> None:
        if self.parts.planner.proposers:
            self.policy.calibrate(calibrate(self.parts))
        while not self._stopping:
            self._wait_for_work()
            self._install_swaps()
            self._drop_cancelled()
            self._admit_one()
            self._prefill()
            self.batch.guarded_round()

    def _end_all(self) -> None:
        """Whoever waits hears of the end, and nobody is taken any more."""
        with self._wake:
            self._stopping = True
        self.batch.abort_all()
        while self._waiting:
            self.batch.end_aborted(self._waiting.popleft())
        while self._swaps:
            _, future = self._swaps.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDead("the engine was stopped before the swap"))

    def _wait_for_work(self) -> None:
        started = time.monotonic()
        with self._wake:
            self._wake.wait_for(self._has_work)
        self._idle_seconds += time.monotonic() - started

    def _has_work(self) -> bool:
        rows = self.batch.rows or self.batch.reading or self._waiting
        return bool(rows or self._swaps or self._cancelled or self._stopping)

    def _install_swaps(self) -> None:
        while self._swaps:
            swap, future = self._swaps.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            started = time.monotonic()
            try:
                draft = self.proposer.install(swap)
            except Exception as error:
                log.exception("swap of %s to version %s failed", swap.lane, swap.version)
                future.set_exception(error)
                continue
            with self.ledger.lock:
                if swap.draft is None:
                    self.ledger.forget(swap.lane)
                else:
                    self.ledger.of(swap.lane, draft.version)
            self.policy.age(swap.lane)
            pause = time.monotonic() - started
            domain, _ = domain_and_arm(swap.lane)
            future.set_result(SwapResult(domain, draft.version, draft.checksum, pause))

    def _drop_cancelled(self) -> None:
        with self._wake:
            cancelled, self._cancelled = self._cancelled | self.batch.deaf, set()
            self.batch.deaf.clear()
            dropped = [row for row in self._waiting if row.request.request_id in cancelled]
            self._waiting = deque(row for row in self._waiting if row.request.request_id not in cancelled)
        if cancelled:
            self.batch.abort(cancelled)
        for row in dropped:
            self.batch.end_aborted(row)

    def _admit_one(self) -> None:
        """The next prompt to read, once the one before it is read."""
        with self._wake:
            full = len(self.batch.rows) >= self.max_num_seqs
            if not self._waiting or full or self.batch.reading is not None:
                return
            row = self._waiting.popleft()
        self.batch.admit(row)

    def _prefill(self) -> None:
        """One chunk of a prompt between two rounds, so that running streams wait for one chunk at most."""
        started = time.monotonic()
        self.batch.read_chunk()
        self._prefill_seconds += time.monotonic() - started
