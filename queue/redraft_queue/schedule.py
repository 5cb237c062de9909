"""The schedule's hash of a domain: beat notes what it asked for, a round's end notes how it ended.

All writes are idempotent or compare before they set, so that several beats and a message delivered twice
change it once. All stamps are the Redis server's: hosts' clocks may differ, and may be stepped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import redis

from redraft_queue import keys
from redraft_queue.clock import clock_of
from redraft_queue.connection import translated
from redraft_queue.due import CHALLENGER, CLOCK, FAILED, SKIPPED, ScheduleState, next_due
from redraft_queue.settings import QueueSettings
from redraft_queue.spoken import duration, headroom

_ASK = """
if (redis.call('HGET', KEYS[1], 'asked_ms') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'asked_ms', ARGV[2], 'trigger', ARGV[3], 'round_id', ARGV[4],
  'asked_tokens', ARGV[5], 'sent', '0')
return 1
"""
_RESTAMP = """
if (redis.call('HGET', KEYS[1], 'asked_ms') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'asked_ms', ARGV[2], 'round_id', '')
return 1
"""
# A round that is delivered again after its end reports a second time; it must count once.
_FINISH = """
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], 'ended_ms', now, 'end', ARGV[2], 'reason', ARGV[3])
if ARGV[4] == '' then return 0 end
local again = ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'counted_round') == ARGV[1]
redis.call('HSET', KEYS[1], 'finished_ms', now, 'decision', ARGV[2], 'counted_round', ARGV[1],
  unpack(ARGV, 5))
if ARGV[4] == 'gain' then
  redis.call('HSET', KEYS[1], 'rounds_without_gain', '0')
elseif ARGV[4] == 'none' and not again then
  redis.call('HINCRBY', KEYS[1], 'rounds_without_gain', 1)
end
return 1
"""
# Whoever ends a trial may die before the registry knows and do it again; it must count once.
_LOSE = """
if redis.call('HGET', KEYS[1], 'lost_trial') == ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'lost_trial', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'rounds_without_gain', 1)
return 1
"""
_REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A domain's schedule for people and machines. Times are the Redis server's, in ms since the epoch."""

    domain: str
    schedule: str
    """As the settings have it: seconds, or a crontab."""
    asked_ms: int | None
    trigger: str | None
    """What asked for that round: clock | tokens | drop."""
    next_due_ms: int | None
    """When the clock asks next; None before beat has seen the domain."""
    next_in_seconds: float | None
    """The same from now on; 0 where it is due."""
    wait_seconds: float | None
    """From the last asked round to the next, doubling included."""
    running: bool
    rounds_without_gain: int
    last_end: str | None
    """Decision of the last round that ended, "skipped" and "failed" included."""
    last_reason: str | None
    decision: str | None
    """Of the last round that trained."""
    finished_trigger: str | None
    """What asked for that round: clock | tokens | drop | operator."""
    gain: float | None
    gain_ci_low: float | None
    gain_ci_high: float | None
    headroom: str | None
    """Where the last trained round had no sure gain: one sentence with the numbers; else None."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def server_ms(client: redis.Redis) -> int:
    """The Redis server's time. Raises redis.RedisError."""
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


def state_of(fields: Mapping[bytes, bytes]) -> ScheduleState:
    """The hash as it was read; a field that makes no sense counts as missing."""
    found = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    return ScheduleState(
        asked_ms=_whole(found, "asked_ms"),
        trigger=found.get("trigger", CLOCK),
        round_id=found.get("round_id", ""),
        sent=found.get("sent") != "0",
        asked_tokens=_whole(found, "asked_tokens"),
        ended_ms=_whole(found, "ended_ms"),
        end=found.get("end", ""),
        reason=found.get("reason", ""),
        finished_ms=_whole(found, "finished_ms"),
        decision=found.get("decision", ""),
        finished_trigger=found.get("finished_trigger", ""),
        gain=_number(found, "gain"),
        gain_ci_low=_number(found, "gain_ci_low"),
        gain_ci_high=_number(found, "gain_ci_high"),
        tokens_added=max(0, _whole(found, "tokens_added") or 0),
        rounds_without_gain=max(0, _whole(found, "rounds_without_gain") or 0),
    )


def record_asked(
    client: redis.Redis,
    domain: str,
    state: ScheduleState,
    now_ms: int,
    trigger: str,
    round_id: str,
    tokens: int,
) -> bool:
    """Claim a round that `state` made due; False where another beat was faster. Raises StreamUnavailable.

    The claim is open until `record_sent`; a beat that dies in between has it sent again by the next tick.
    """
    arguments = [_stamp(state), now_ms, trigger, round_id, tokens]
    with translated(f"note the round asked for domain {domain}"):
        return bool(client.eval(_ASK, 1, keys.schedule(domain), *map(str, arguments)))


def record_sent(client: redis.Redis, domain: str) -> None:
    """The asked round's message has reached the broker. Raises StreamUnavailable."""
    with translated(f"note the round sent for domain {domain}"):
        client.hset(keys.schedule(domain), "sent", "1")


def restamp(client: redis.Redis, domain: str, state: ScheduleState, now_ms: int) -> None:
    """Wait from now on: the stamp is missing, or of a clock that has been set back since."""
    with translated(f"begin the schedule of domain {domain}"):
        client.eval(_RESTAMP, 1, keys.schedule(domain), _stamp(state), str(now_ms))


def reset_wait(client: redis.Redis, domain: str) -> None:
    """End the doubling: acceptance has fallen, or a version was promoted. Raises StreamUnavailable."""
    with translated(f"reset the wait of domain {domain}"):
        if client.hexists(keys.schedule(domain), "rounds_without_gain"):
            client.hset(keys.schedule(domain), "rounds_without_gain", "0")


def record_finished(
    client: redis.Redis,
    domain: str,
    result: Mapping[str, Any],
    tokens_added: int,
    *,
    round_id: str = "",
    trigger: str = "",
) -> None:
    """Note how a round ended: `result` is the task's, `tokens_added` the domain's counter at its plan.

    A gain whose interval excludes zero ends the doubling of the wait, a trained round without one doubles it
    once more, and "skipped" and "failed" leave it as it is, and so does a challenger: its trial decides.
    Raises StreamUnavailable.
    """
    decision = str(result.get("decision") or FAILED)
    low = result.get("gain_ci_low")
    kind = "gain" if low is not None and low > 0 else "none"
    if decision in (SKIPPED, FAILED, CHALLENGER):
        kind = "trial" if decision == CHALLENGER else ""
    numbers = {name: result.get(name) for name in ("gain", "gain_ci_low", "gain_ci_high")}
    numbers |= {"tokens_added": tokens_added, "finished_trigger": trigger}
    pairs = [part for name, value in numbers.items() for part in (name, "" if value is None else str(value))]
    reason = str(result.get("reason") or "")[:_REASON_CHARACTERS]
    with translated(f"note the end of the round of domain {domain}"):
        client.eval(_FINISH, 1, keys.schedule(domain), round_id, decision, reason, kind, *pairs)


def record_lost_trial(client: redis.Redis, domain: str, version: int) -> None:
    """A candidate that the gate approved did not stand its trial: its round brought no gain after all.

    Safe to repeat. Raises StreamUnavailable.
    """
    with translated(f"note the lost trial of domain {domain}"):
        client.eval(_LOSE, 1, keys.schedule(domain), str(version))


def schedule_of(client: redis.Redis, domain: str, settings: QueueSettings) -> ScheduleView:
    """Where the domain's schedule stands; one round trip. Raises StreamUnavailable."""
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.hgetall(keys.schedule(domain))
    pipeline.exists(keys.round_lock(domain))
    with translated(f"read the schedule of domain {domain}"):
        (seconds, microseconds), fields, running = pipeline.execute()
    now_ms = seconds * 1000 + microseconds // 1000
    return view(domain, state_of(fields), now_ms, bool(running), settings)


def view(
    domain: str, state: ScheduleState, now_ms: int, running: bool, settings: QueueSettings
) -> ScheduleView:
    """What `schedule_of` answers, from what it has read."""
    schedule = settings.schedules.get(domain, settings.schedule_seconds)
    asked_ms = None if state.asked_ms is None else min(state.asked_ms, now_ms)
    due_ms = None if asked_ms is None else next_due(state, asked_ms, clock_of(schedule), settings)
    left = None if due_ms is None else max(0.0, (due_ms - now_ms) / 1000)
    return ScheduleView(
        domain=domain,
        schedule=schedule if isinstance(schedule, str) else duration(schedule),
        asked_ms=state.asked_ms,
        trigger=None if state.asked_ms is None else state.trigger,
        next_due_ms=due_ms,
        next_in_seconds=left,
        wait_seconds=None if due_ms is None or asked_ms is None else (due_ms - asked_ms) / 1000,
        running=running,
        rounds_without_gain=state.rounds_without_gain,
        last_end=state.end or None,
        last_reason=state.reason or None,
        decision=state.decision or None,
        finished_trigger=state.finished_trigger or None,
        gain=state.gain,
        gain_ci_low=state.gain_ci_low,
        gain_ci_high=state.gain_ci_high,
        headroom=headroom(state, left),
    )


def _stamp(state: ScheduleState) -> str:
    return "" if state.asked_ms is None else str(state.asked_ms)


def _whole(found: Mapping[str, str], name: str) -> int | None:
    try:
        return int(found[name])
    except (KeyError, ValueError):
        return None


def _number(found: Mapping[str, str], name: str) -> float | None:
    try:
        return float(found[name])
    except (KeyError, ValueError):
        return None
