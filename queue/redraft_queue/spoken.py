"""The schedule in words: how long, and whether there is anything left to gain."""

from __future__ import annotations

from redraft_queue.due import ScheduleState

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """ "45 s", "1.5 h", "2 d": a number of at most two digits after the point, in the largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"


def headroom(state: ScheduleState, next_in_seconds: float | None) -> str | None:
    """Where the last trained round had no sure gain: "no headroom", with that gain and its interval."""
    rounds = state.rounds_without_gain
    if not rounds:
        return None
    counted = "1 round" if rounds == 1 else f"{rounds} rounds in a row"
    sentence = f"no headroom: {counted} without a sure gain, {_last(state)}"
    if next_in_seconds is None:
        return sentence
    wait = f"in {duration(next_in_seconds)}" if next_in_seconds > 0 else "is due"
    return f"{sentence}; next round {wait}"


def _last(state: ScheduleState) -> str:
    if state.gain is None:
        return "the last one without a measured gain"
    low, high = state.gain_ci_low, state.gain_ci_high
    if low is None:
        return f"the last {state.gain:+.3f}"
    upper = "" if high is None else f" to {high:+.3f}"
    numbers = f"{state.gain:+.3f} ({'' if upper else 'at least '}{low:+.3f}{upper})"
    return f"the last {numbers}" if low <= 0 else f"the last, {numbers}, has not stood its trial"
