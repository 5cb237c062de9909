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
from collections.abc import Callable
from concurrent.futures import Future

import torch
from redraft_models.adapter import Adapter
from redraft_models.loading import ModelPair
from redraft_queue.records import Sample

from redraft_serving.engine import commit
from redraft_serving.engine.interface import (
    Emission,
    EmissionSink,
    EngineDead,
    EngineFull,
    EngineStatistics,
    GenerationRequest,
    RequestStatistics,
    SwapResult,
)
from redraft_serving.engine.ledger import Ledger, version_of
from redraft_serving.engine.proposer import DraftModelProposer, NoProposer, PreparedSwap, Proposer
from redraft_serving.engine.recording import record_laws, record_logprobs, sample_of
from redraft_serving.engine.round import RoundResult, Rounds
from redraft_serving.engine.rows import EmittedToken, Row, new_row
from redraft_serving.settings import ServingSettings
from redraft_serving.text import TextStream

log = logging.getLogger(__name__)

SampleSink = Callable[[Sample], None]


class LocalEngine:
    """Implements the `Engine` interface over a target and a draft loaded in this process."""

    def __init__(
        self, pair: ModelPair, settings: ServingSettings, on_sample: SampleSink | None = None
    ) -> None:
        self.pair, self.on_sample = pair, on_sample
        self.max_model_len = pair.max_model_len
        self.max_num_seqs, self.max_waiting = settings.max_num_seqs, settings.max_waiting
        self.num_speculative_tokens = settings.num_speculative_tokens if pair.draft else 0
        self.capture_top_k = settings.capture_top_k
        self.proposer = _proposer(pair, settings.max_num_seqs)
        self.rounds = Rounds(
            pair.target.module,
            self.proposer,
            slots=settings.max_num_seqs,
            max_len=pair.max_model_len,
            vocab_size=pair.vocab_size,
            ends=pair.eos_token_ids,
            num_speculative_tokens=self.num_speculative_tokens,
        )
        self.ledger = Ledger()
        self._rows: list[Row] = []
        self._waiting: deque[Row] = deque()
        self._cancelled: set[str] = set()
        self._swaps: deque[tuple[PreparedSwap, Future[SwapResult]]] = deque()
        self._swap_lock = threading.Lock()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="redraft-inference", daemon=True)

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
        with self._wake:
            if not self.alive:
                raise EngineDead("the inference thread has ended; restart the worker")
            if len(self._rows) + len(self._waiting) >= self.max_num_seqs + self.max_waiting:
                raise EngineFull(len(self._waiting))
            self._waiting.append(row)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """End all choices of a request within one round. Unknown ids are ignored."""
        with self._wake:
            self._cancelled.add(request_id)
            self._wake.notify()

    def swap(self, domain: str, adapter: Adapter | None, version: int | str) -> Future[SwapResult]:
        """Compute weights here, install them between two rounds. The future may hold AdapterRejected."""
        future: Future[SwapResult] = Future()
        with self._swap_lock:
            try:
                prepared = self.proposer.prepare(domain, adapter, version)
            except Exception as error:
                future.set_exception(error)
                return future
            with self._wake:
                if not self.alive:
                    future.set_exception(EngineDead("the inference thread has ended; restart the worker"))
                    return future
                self._swaps.append((prepared, future))
                self._wake.notify()
            # The next swap of a domain prepares from weights that this one has left alone, but shares its
            # buffers.
            _wait_for(future)
        return future

    def statistics(self) -> EngineStatistics:
        """A consistent snapshot."""
        return self.ledger.snapshot(
            len(self._rows), len(self._waiting), self.num_speculative_tokens, self.proposer
        )

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
            while not self._stopping:
                self._wait_for_work()
                self._install_swaps()
                self._drop_cancelled()
                self._admit_one()
                self._guarded_round()
        for row in [*self._rows, *self._waiting]:
            self._end(row, commit.Ending("abort"), "")
        self._rows.clear()
        self._waiting.clear()

    def _wait_for_work(self) -> None:
        with self._wake:
            self._wake.wait_for(
                lambda: self._rows or self._waiting or self._swaps or self._cancelled or self._stopping
            )

    def _install_swaps(self) -> None:
        while self._swaps:
            prepared, future = self._swaps.popleft()
            started = time.monotonic()
            try:
                draft = self.proposer.install(prepared)
            except Exception as error:
                log.exception("swap of domain %s to version %s failed", prepared.domain, prepared.version)
                future.set_exception(error)
                continue
            with self.ledger.lock:
                self.ledger.of(prepared.domain, draft.version)
            pause = time.monotonic() - started
            future.set_result(SwapResult(prepared.domain, draft.version, draft.checksum, pause))

    def _drop_cancelled(self) -> None:
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
        if not cancelled:
            return
        for row in [row for row in self._rows if row.request.request_id in cancelled]:
            self._release(row)
            self._end(row, commit.Ending("abort"), "")
        with self._wake:
            dropped = [row for row in self._waiting if row.request.request_id in cancelled]
            self._waiting = deque(row for row in self._waiting if row.request.request_id not in cancelled)
        for row in dropped:
            self._end(row, commit.Ending("abort"), "")

    def _admit_one(self) -> None:
        """One prompt between two rounds, so that running streams wait for one prompt at most."""
        with self._wake:
            if not self._waiting or len(self._rows) >= self.max_num_seqs:
                return
            row = self._waiting.popleft()
            row.slot = len(self._rows)
            self._rows.append(row)
        row.admitted = time.monotonic()
        try:
            self.rounds.admit(row)
        except Exception as error:
            log.exception("request %s failed while its prompt was read", row.request.request_id)
            self._release(row)
            self._fail(row, f"the prompt could not be read ({type(error).__name__})")
        row.decoding = time.monotonic()
        with self.ledger.lock:
            self.ledger.prompt_tokens += row.prompt_length

    def _guarded_round(self) -> None:
        """A fault of one round fails the requests in it, never the thread."""
        if not self._rows:
            return
        try:
            self._round()
        except Exception as error:
            log.exception("a round of %d requests failed", len(self._rows))
            with self._wake:
                failed, self._rows = self._rows, []
            for row in failed:
                self._fail(row, f"the engine failed in this round ({type(error).__name__})")

    def _round(self) -> None:
        rows = list(self._rows)
        plain_before = [row.plain_reason for row in rows]
        result = self.rounds.run(rows)
        self._count_fallbacks(rows, plain_before)
        runs = [self._cut_run(row, result, b) for b, row in enumerate(rows)]
        self._record(rows, result, [run for run, _ in runs])
        shares = [self._advance(row, *runs[b], result, b) for b, row in enumerate(rows)]
        # Slots are freed once every row is committed: a row moves with all that this round wrote of it.
        for row, (share, _) in zip(rows, shares, strict=True):
            if share is None or share.ending is not None:
                self._release(row)
        for row, (share, text) in zip(rows, shares, strict=True):
            self._tell(row, share, text)

    def _count_fallbacks(self, rows: list[Row], before: list[str | None]) -> None:
        with self.ledger.lock:
            for row, reason in zip(rows, before, strict=True):
                if row.plain_reason != reason and row.plain_reason is not None:
                    self.ledger.fallback[row.plain_reason] += 1

    def _cut_run(
        self, row: Row, result: RoundResult, b: int
    ) -> tuple[list[EmittedToken], commit.Ending | None]:
        limit = result.proposal.limits[b]
        run = commit.run_of(row, result.drafted[b], result.accepted[b], result.last[b], limit)
        kept, ending = commit.token_ending(row, run, self.pair.eos_token_ids, self.max_model_len)
        return run[:kept], ending

    def _record(self, rows: list[Row], result: RoundResult, runs: list[list[EmittedToken]]) -> None:
        """Keep the laws of what was emitted, for all rows that want them in one pass."""
        captured = [b for b, row in enumerate(rows) if self.on_sample and row.request.capture]
        places = [(b, j) for b in captured for j in range(len(runs[b]))]
        record_laws(result.shaped, places, [runs[b][j] for b, j in places], self.capture_top_k)
        for b, row in enumerate(rows):
            top = row.request.top_logprobs
            if top is not None:
                record_logprobs(result.raw, [(b, j) for j in range(len(runs[b]))], runs[b], top)

    def _advance(
        self, row: Row, run: list[EmittedToken], ending: commit.Ending | None, result: RoundResult, b: int
    ) -> tuple[commit.RowRound | None, str]:
        """Commit a row's share of the round; None where its target failed."""
        if result.failed[b]:
            self.rounds.cache.clear(row.slot)
            return None, ""
        limit, accepted = result.proposal.limits[b], result.accepted[b]
        domain, version = row.request.domain, version_of(self.proposer, row.request.domain)
        share, text = commit.advance(row, run, ending, limit, accepted)
        commit.count_round(row, share, version)
        self.ledger.add(domain, version, share, row.emitted[row.released : row.settled])
        if share.ending is None:
            self.rounds.commit(row, limit, accepted, [token.token_id for token in run])
        return share, text

    def _tell(self, row: Row, share: commit.RowRound | None, text: str) -> None:
        if share is None:
            self._fail(row, "the target's logits are not finite")
        elif share.ending is not None:
            self._end(row, share.ending, text)
        else:
            self._send(row, commit.emission(row, text, None, None))

    def _release(self, row: Row) -> None:
        """Free the slot: the last row moves into it, so that rows always fill a prefix of the slots."""
        with self._wake:
            last = self._rows.pop()
            if last is row:
                return
            self._rows[row.slot] = last
        source, last.slot = last.slot, row.slot
        self.rounds.move(last, source)

    def _end(self, row: Row, ending: commit.Ending, text: str) -> None:
        """Offer the sample, then tell the client: whoever saw the end finds the sample on its way."""
        if ending.finish_reason == "abort":
            text += row.text.finish()
            row.settled = len(row.emitted)
        with self.ledger.lock:
            self.ledger.finished[ending.finish_reason] += 1
        self._offer_sample(row, ending.finish_reason)
        self._send(row, commit.emission(row, text, ending, _statistics(row)))

    def _offer_sample(self, row: Row, finish_reason: str) -> None:
        if self.on_sample is None or not row.request.capture:
            return
        try:
            sample = sample_of(
                row, finish_reason, self.pair.target.fingerprint, self.pair.tokenizer_fingerprint
            )
            if sample is not None:
                self.on_sample(sample)
        except Exception:
            log.exception("the sample of request %s was lost", row.request.request_id)

    def _fail(self, row: Row, reason: str) -> None:
        with self.ledger.lock:
            self.ledger.finished["error"] += 1
        self._send(row, Emission("", (), finish_reason="error", error=reason, statistics=_statistics(row)))

    def _send(self, row: Row, emission: Emission | None) -> None:
        if emission is None:
            return
        try:
            row.sink(emission)
        except Exception:
            log.exception("the receiver of request %s failed; the request is dropped", row.request.request_id)
            with self._wake:
                self._cancelled.add(row.request.request_id)


def _proposer(pair: ModelPair, slots: int) -> Proposer:
    if pair.draft is None:
        return NoProposer()
    return DraftModelProposer(
        pair.draft.module, slots, pair.max_model_len, pair.vocab_size, pair.eos_token_ids
    )


def _statistics(row: Row) -> RequestStatistics:
    now = time.monotonic()
    admitted = row.admitted or now
    decoding = row.decoding or now
    return RequestStatistics(
        rounds=row.rounds,
        proposed=row.proposed,
        tested=row.tested,
        accepted=row.accepted,
        emitted=len(row.emitted),
        accepted_histogram=tuple(row.accepted_histogram),
        draft_versions=tuple((version, int(rounds)) for version, rounds in row.versions),
        queue_seconds=admitted - row.submitted,
        prefill_seconds=decoding - admitted,
        decode_seconds=now - decoding,
    )


def _wait_for(future: Future[SwapResult]) -> None:
    """Until the swap is installed or has failed; its outcome is for the caller."""
    try:
        future.exception(timeout=600)
    except TimeoutError:
        log.warning("a swap has been waiting for a round to end for 600 s")
