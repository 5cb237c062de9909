"""What a round's verdict means for one request: tokens, ends, text, counts.

Everything that a client or a trainer sees is cut here, at one place: text, ids, log-probabilities, counts,
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redraft_serving.engine.counts import tested_tokens
from redraft_serving.engine.interface import Emission, RequestStatistics, TokenLogprob
from redraft_serving.engine.rows import EmittedToken, Row
from redraft_serving.policy.types import DRAFT

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ended."""

    finish_reason: str
    stop_reason: str | int | None = None
    by_token: bool = False
    """True where the last token ended it and has no text of its own."""


@dataclass(frozen=True, slots=True)
class RowRound:
    """One row's share of a round after the cut."""

    proposed: int
    tested: int
    accepted: int
    proposer: str | None
    ending: Ending | None

    @property
    def by_draft(self) -> bool:
        """True where the draft model proposed."""
        return self.proposer == DRAFT and self.proposed > 0


def run_of(
    row: Row, drafted: Sequence[int], accepted: int, last: int, limit: int, by_draft: bool
) -> list[EmittedToken]:
    """The tokens of a round in order: the accepted prefix, then the correction, bonus or plain token."""
    run = [EmittedToken(token, "accepted", token, by_draft) for token in drafted[:accepted]]
    if accepted < limit:
        run.append(EmittedToken(last, "corrected", drafted[accepted], by_draft))
    else:
        run.append(EmittedToken(last, "bonus" if limit else "plain", by_draft=by_draft))
    return run[: row.remaining]


def token_ending(
    row: Row, run: Sequence[EmittedToken], eos: frozenset[int], max_len: int
) -> tuple[int, Ending | None]:
    """(tokens of the run to keep, why it ends there): the first EOS or stop id, else max_tokens, else the
    window.
    """
    for index, token in enumerate(run):
        if token.token_id in eos and not row.request.ignore_eos:
            return index + 1, Ending("stop", by_token=True)
        if token.token_id in row.request.stop_token_ids:
            return index + 1, Ending("stop", token.token_id, by_token=True)
    full = len(run) >= row.remaining or len(row.tokens) + len(run) >= max_len
    return len(run), Ending("length") if full else None


def advance(
    row: Row,
    run: list[EmittedToken],
    ending: Ending | None,
    limit: int,
    accepted: int,
    proposer: str | None,
) -> tuple[RowRound, str]:
    """Add a run to the row and its text; a stop string may cut both. Answers counts and text to show."""
    before = len(row.emitted)
    hidden = bool(ending and ending.by_token and not row.request.include_stop_str_in_output)
    row.emitted.extend(run)
    step = row.text.push([token.token_id for token in (run[:-1] if hidden else run)])
    text, settled = step.text, step.total_kept
    if step.stopped is not None:
        ending = Ending("stop", step.stopped)
        del row.emitted[step.total_kept :]
    elif ending is not None:
        text += row.text.finish()
        settled = len(row.emitted)
    kept = max(0, len(row.emitted) - before)
    kept_accepted = min(accepted, kept)
    tested = kept_accepted if kept <= accepted else tested_tokens(limit, accepted)
    row.settled = settled
    return RowRound(limit, min(tested, limit), kept_accepted, proposer, ending), text


def count_round(row: Row, share: RowRound, version: int | str) -> None:
    """Add a round to the request's own counts."""
    row.rounds += 1
    row.proposers[share.proposer or PLAIN if share.proposed else PLAIN] += 1
    if not share.proposed:
        return
    row.proposed += share.proposed
    row.tested += share.tested
    row.accepted += share.accepted
    row.accepted_histogram.extend([0] * (share.proposed + 1 - len(row.accepted_histogram)))
    row.accepted_histogram[share.accepted] += 1
    if share.by_draft:
        row.draft_rounds += 1
        row.draft_proposed += share.proposed
        row.draft_tested += share.tested
        row.draft_accepted += share.accepted
        row.count_version(version)


def emission(
    row: Row, text: str, ending: Ending | None, statistics: RequestStatistics | None
) -> Emission | None:
    """What the sink gets of this round: settled tokens with their text. None where nothing settled."""
    tokens = row.emitted[row.released : row.settled]
    row.released = row.settled
    if not tokens and not text and ending is None:
        return None
    return Emission(
        text=text,
        token_ids=tuple(token.token_id for token in tokens),
        logprobs=tuple(_logprobs(tokens)),
        finish_reason=ending.finish_reason if ending else None,
        stop_reason=ending.stop_reason if ending else None,
        statistics=statistics,
    )


def _logprobs(tokens: Sequence[EmittedToken]) -> list[TokenLogprob]:
    return [token.logprob for token in tokens if token.logprob is not None]
