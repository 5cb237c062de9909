"""Whether a round of a domain is due, and why: a pure function of what is known.

The clock asks when the wait since the last asked round is over. Each round in a row that ended without a
sure gain doubles that wait. New tokens and falling acceptance come before the clock; a fall also ends the
doubling. All times are milliseconds of the Redis server's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from redraft_queue.clock import Clock
from redraft_queue.settings import QueueSettings

CLOCK, TOKENS, DROP, OPERATOR = "clock", "tokens", "drop", "operator"
"""What asks for a round."""

FAILED, SKIPPED = "failed", "skipped"
"""Ends of a round that say nothing about whether there is something to gain."""

CHALLENGER = "challenger"
"""End of a round whose candidate the gate approved: live traffic says whether there was something to gain."""

RESEND_MS = 10_000
"""A round that was noted as asked for, but whose message nobody has confirmed, is sent again after this."""
CLOCK_SLACK_MS = 1_000
"""A stamp may lie this far ahead; further, and the clock was set back."""
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Moving averages of accepted/tested, and the tested tokens behind them."""

    short: float
    long: float
    tested: int


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """What the schedule's hash says about a domain; None and zero where nothing is known."""

    asked_ms: int | None = None
    trigger: str = CLOCK
    round_id: str = ""
    sent: bool = True
    """The message of the asked round has reached the broker."""
    asked_tokens: int | None = None
    """The domain's token counter when the round was asked for."""
    ended_ms: int | None = None
    end: str = ""
    """Decision of the last round that ended, skipped and failed ones included."""
    reason: str = ""
    finished_ms: int | None = None
    decision: str = ""
    """Of the last round that trained; the numbers below are its."""
    finished_trigger: str = ""
    gain: float | None = None
    gain_ci_low: float | None = None
    gain_ci_high: float | None = None
    tokens_added: int = 0
    """The token counter at its plan: what came later is new."""
    rounds_without_gain: int = 0
    """Rounds in a row that trained and had no gain whose interval excludes zero."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What beat sees of a domain at a tick."""

    now_ms: int
    tokens: int = 0
    running: bool = False
    """A round holds the domain's lock."""
    trial: bool = False
    """A challenger is being tried on live traffic."""
    acceptance: Acceptance | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What beat is to do. `trigger` None: ask for nothing."""

    due_ms: int
    """When the clock asks next, if nothing comes before."""
    trigger: str | None = None
    restamp: bool = False
    """The last stamp is missing or lies in the future: start to wait now."""
    fallen: bool = False
    """Live acceptance has fallen: the doubled wait is over."""


def decide(state: ScheduleState, sight: Sight, clock: Clock, settings: QueueSettings) -> Verdict:
    """Whether a round is due now."""
    asked_ms = state.asked_ms
    if asked_ms is None or asked_ms > sight.now_ms + CLOCK_SLACK_MS:
        fresh = replace(state, asked_ms=sight.now_ms)
        return Verdict(next_due(fresh, sight.now_ms, clock, settings), restamp=True)
    fallen = has_fallen(sight.acceptance, settings)
    if fallen:
        state = replace(state, rounds_without_gain=0)
    due_ms = next_due(state, asked_ms, clock, settings)
    return Verdict(due_ms, _trigger(state, sight, due_ms, fallen, settings), fallen=fallen)


def next_due(state: ScheduleState, asked_ms: int, clock: Clock, settings: QueueSettings) -> int:
    """When the clock asks again after `asked_ms`. A single gap of the clock may be longer than the limit."""
    gap = clock.next_after(asked_ms) - asked_ms
    if not state.rounds_without_gain:
        return asked_ms + gap
    doubled: int = gap << min(state.rounds_without_gain, _MOST_DOUBLINGS)
    wait = min(doubled, max(gap, round(settings.max_backoff_seconds * 1000)))
    return clock.first_from(asked_ms + wait, slack_ms=gap // 2)


def has_fallen(acceptance: Acceptance | None, settings: QueueSettings) -> bool:
    """Live acceptance is below what it was, by more than `drop_trigger`, on enough tokens."""
    if acceptance is None or settings.drop_trigger is None:
        return False
    enough = acceptance.tested >= settings.drop_min_tested
    return enough and acceptance.long - acceptance.short >= settings.drop_trigger


def new_tokens(state: ScheduleState, tokens: int) -> int:
    """Output tokens since the last round's plan; a counter that fell was begun anew."""
    return tokens - state.tokens_added if tokens >= state.tokens_added else tokens


def _trigger(
    state: ScheduleState, sight: Sight, due_ms: int, fallen: bool, settings: QueueSettings
) -> str | None:
    waited_ms = sight.now_ms - (state.asked_ms or 0)
    if not state.sent and waited_ms >= RESEND_MS:
        return state.trigger
    if sight.running:
        return None
    if not _waiting(state, sight, due_ms) and _may_come_early(state, sight, waited_ms, settings):
        new = new_tokens(state, sight.tokens)
        if fallen and new >= settings.min_new_tokens:
            return DROP
        wanted = settings.new_tokens_trigger
        if (
            wanted is not None
            and new >= max(wanted, settings.min_new_tokens)
            and not state.rounds_without_gain
        ):
            return TOKENS
    return CLOCK if sight.now_ms >= due_ms else None


def _waiting(state: ScheduleState, sight: Sight, due_ms: int) -> bool:
    """The message of the asked round still stands in the queue, or is in work: another one says no more."""
    ended_since = (state.ended_ms or 0) >= (state.asked_ms or 0)
    return bool(state.round_id) and not ended_since and sight.now_ms < due_ms


def _may_come_early(state: ScheduleState, sight: Sight, waited_ms: int, settings: QueueSettings) -> bool:
    """Before the clock only where a round could find more than the last one did, and not in a hurry. One that
    failed is repeated by the clock alone.
    """
    moved = sight.tokens != state.asked_tokens
    rested = waited_ms >= settings.schedule_min_seconds * 1000
    return moved and rested and not sight.trial and state.end != FAILED
