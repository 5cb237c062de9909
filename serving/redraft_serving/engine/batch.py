"""The rows in flight: who sits in which slot, and what a round means for each of them.

Only the inference thread touches a batch. A request's end is told last: its slot is free and its sample
offered by the time that the client hears of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redraft_models.loading import ModelPair
from redraft_queue.records import Sample

from redraft_serving.engine import commit
from redraft_serving.engine.interface import Emission, RequestStatistics
from redraft_serving.engine.ledger import Ledger, version_of
from redraft_serving.engine.prefill import Prefill
from redraft_serving.engine.recording import record_laws, record_logprobs, sample_of
from redraft_serving.engine.round import RoundResult, Rounds
from redraft_serving.engine.rows import EmittedToken, Row

log = logging.getLogger(__name__)

# What clients are told: nothing of the code, which the log names.
NOT_FINITE = "the target's logits are not finite"
UNREADABLE = "the prompt could not be read; the server's log says why"
BROKEN = "the engine failed in this round; the server's log says why"

SampleSink = Callable[[Sample], None]
Run = tuple[list[EmittedToken], commit.Ending | None]
Share = tuple[commit.RowRound | None, str]


class Batch:
    """Rows that fill a prefix of the slots."""

    def __init__(
        self,
        pair: ModelPair,
        rounds: Rounds,
        prefill: Prefill,
        ledger: Ledger,
        capture_top_k: int,
        on_sample: SampleSink | None,
    ) -> None:
        self.pair, self.rounds, self.prefill, self.ledger = pair, rounds, prefill, ledger
        self.capture_top_k, self.on_sample = capture_top_k, on_sample
        self.rows: list[Row] = []
        self.reading: Row | None = None
        """The row whose prompt is being read; its slot is the one behind those of `rows`."""
        self.deaf: set[str] = set()
        """Request ids whose receiver raised: to be cancelled."""

    @property
    def running(self) -> int:
        """Rows that have a slot."""
        return len(self.rows) + (self.reading is not None)

    def admit(self, row: Row) -> None:
        """Give a row the next slot; its prompt is then read chunk by chunk."""
        row.slot = len(self.rows)
        self.reading = row
        row.admitted = time.monotonic()
        with self.ledger.lock:
            self.ledger.prompt_tokens += row.prompt_length
        with self._guard(row):
            self.prefill.begin(row)
            with self.ledger.lock:
                self.ledger.cached_prompt_tokens += row.cached_tokens

    def read_chunk(self) -> None:
        """Read on in the prompt at hand; a row whose prompt is read joins the rounds."""
        row = self.reading
        if row is None:
            return
        before = row.plain_reason
        with self._guard(row):
            read = self.prefill.read(row)
            if row.rotten:
                self._give_up(row, NOT_FINITE)
            elif read:
                row.decoding = time.monotonic()
                self.reading = None
                self.rows.append(row)
        self._count_fallbacks([row], [before])

    @contextmanager
    def _guard(self, row: Row) -> Iterator[None]:
        """A prompt that can't be read ends its own request alone."""
        try:
            yield
        except Exception:
            log.exception("request %s failed while its prompt was read", row.request.request_id)
            self._give_up(row, UNREADABLE)

    def _give_up(self, row: Row, reason: str) -> None:
        """End the row whose prompt is being read. A NaN left behind would reach the next row of its slot."""
        self.reading = None
        if row.rotten:
            self.rounds.cache.clear(row.slot)
        self._fail(row, reason)

    def guarded_round(self) -> None:
        """One round; a fault of it fails the requests in it, never the thread."""
        if not self.rows:
            return
        rows = list(self.rows)
        try:
            self._round()
        except Exception:
            log.exception("a round of %d requests failed", len(rows))
            self.rows = []
            # Some may have left the batch already, and not have been told.
            for row in rows:
                if not row.told:
                    self._fail(row, BROKEN)
            if self.reading is not None:
                with self._guard(self.reading):
                    self._move(self.reading, 0)

    def abort(self, request_ids: set[str]) -> None:
        """End rows of these requests."""
        if self.reading is not None and self.reading.request.request_id in request_ids:
            row, self.reading = self.reading, None
            self.end_aborted(row)
        for row in [row for row in self.rows if row.request.request_id in request_ids]:
            self._release(row)
            self.end_aborted(row)

    def abort_all(self) -> None:
        """End every row, for good: no slot is needed any more."""
        rows = [*self.rows, *([self.reading] if self.reading is not None else [])]
        self.rows, self.reading = [], None
        for row in rows:
            self.end_aborted(row)

    def end_aborted(self, row: Row) -> None:
        """End a row that has no slot (any more)."""
        text = row.text.finish()
        row.settled = len(row.emitted)
        self._end(row, commit.Ending("abort"), text)

    def _round(self) -> None:
        rows = list(self.rows)
        plain_before = [row.plain_reason for row in rows]
        result = self.rounds.run(rows)
        self._count_fallbacks(rows, plain_before)
        runs = [self._cut_run(row, result, b) for b, row in enumerate(rows)]
        self._record(rows, result, [run for run, _ in runs])
        shares = [self._advance(row, runs[b], result, b) for b, row in enumerate(rows)]
        # Slots are freed once every row is committed: a row moves with all that this round wrote of it.
        for row, (share, _) in zip(rows, shares, strict=True):
            if share is None or share.ending is not None:
                self._release(row)
        for row, (share, text) in zip(rows, shares, strict=True):
            self._tell(row, share, text)
        self.rounds.observe(result)

    def _count_fallbacks(self, rows: list[Row], before: list[str | None]) -> None:
        with self.ledger.lock:
            for row, reason in zip(rows, before, strict=True):
                if row.plain_reason != reason and row.plain_reason is not None:
                    self.ledger.fallback[row.plain_reason] += 1

    def _cut_run(self, row: Row, result: RoundResult, b: int) -> Run:
        run = commit.run_of(
            row,
            result.drafted[b],
            result.accepted[b],
            result.last[b],
            result.limits[b],
            result.by_draft(b),
        )
        kept, ending = commit.token_ending(row, run, self.pair.eos_token_ids, self.pair.max_model_len)
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

    def _advance(self, row: Row, cut: Run, result: RoundResult, b: int) -> Share:
        """Commit a row's share of the round; None where its target failed."""
        if result.failed[b]:
            self.rounds.cache.clear(row.slot)
            return None, ""
        run, ending = cut
        lane = self.rounds.proposer.lane_of(row)
        version = version_of(self.rounds.proposer, lane)
        proposer = result.plan.rows[b].proposer
        share, text = commit.advance(row, run, ending, result.limits[b], result.accepted[b], proposer)
        commit.count_round(row, share, version)
        self.ledger.add(lane, version, share, row.emitted[row.released : row.settled])
        if share.ending is None:
            self.rounds.commit(row, result, b, [token.token_id for token in run])
        else:
            self.prefill.keep(row)
            if row.prediction is not None:
                row.prediction.extend([token.token_id for token in run])
        return share, text

    def _tell(self, row: Row, share: commit.RowRound | None, text: str) -> None:
        if share is None:
            self._fail(row, NOT_FINITE)
        elif share.ending is not None:
            self._end(row, share.ending, text)
        else:
            self._send(row, commit.emission(row, text, None, None))

    def _release(self, row: Row) -> None:
        """Free the slot: the last row moves into it, so that rows always fill a prefix of the slots."""
        last = self.rows.pop()
        if last is not row:
            self.rows[row.slot] = last
            self._move(last, row.slot)
        if self.reading is not None:
            self._move(self.reading, len(self.rows))

    def _move(self, row: Row, slot: int) -> None:
        source, row.slot = row.slot, slot
        try:
            self.rounds.move(row, source)
        except Exception:
            row.slot = source  # where all of it still lies
            raise

    def _end(self, row: Row, ending: commit.Ending, text: str) -> None:
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
        row.told = emission.finish_reason is not None
        try:
            row.sink(emission)
        except Exception:
            log.exception("the receiver of request %s failed; the request is dropped", row.request.request_id)
            self.deaf.add(row.request.request_id)


def _statistics(row: Row) -> RequestStatistics:
    now = time.monotonic()
    admitted = row.admitted or now
    decoding = row.decoding or now
    accepted_prediction, rejected_prediction = _prediction(row)
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
        cached_tokens=row.cached_tokens,
        prediction_accepted=accepted_prediction,
        prediction_rejected=rejected_prediction,
        proposers=dict(row.proposers),
        draft_tested=row.draft_tested,
        draft_accepted=row.draft_accepted,
    )


def _prediction(row: Row) -> tuple[int, int]:
    return row.prediction.counts(len(row.emitted)) if row.prediction is not None else (0, 0)
