"""What the evidence says: pure functions of two arms' moments, each with one sentence with the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redraft_serving.canary.moments import Moments
from redraft_serving.canary.sequential import Bounds, acceptance_difference, slowdown
from redraft_serving.canary.settings import CanarySettings

Outcome = Literal["continue", "promote", "reject", "undecided", "rollback"]
_OFF_BELOW = 0.05
"""Tested per emitted token below which an arm hardly speculates, so that acceptance tells nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, why, and the bounds behind it (None: not compared)."""

    outcome: Outcome
    sentence: str
    acceptance: Bounds | None = None
    slowdown: Bounds | None = None


def judge_canary(challenger: Moments, champion: Moments, seconds: float, settings: CanarySettings) -> Verdict:
    """Whether the challenger becomes champion. `seconds`: how long the trial has run.

    Promoted when it surely loses less acceptance than `max_acceptance_loss` and surely adds less time per
    token than `max_slowdown`; rejected when it surely loses acceptance or surely adds time; undecided at the
    limits. Each comparison has two sides of error_rate / 2, so that an equal challenger is rejected, and one
    at a margin promoted, with at most `error_rate`.
    """
    rate, time = _compared(
        challenger,
        champion,
        settings,
        (settings.error_rate, settings.max_acceptance_loss, settings.max_slowdown),
    )
    off = _is_off(challenger) or _is_off(champion)
    said = _numbers(challenger, champion, rate, time)

    def verdict(outcome: Outcome, words: str) -> Verdict:
        return Verdict(outcome, f"{words}: {said}.", rate, time)

    fast_enough = time is not None and time.high < settings.max_slowdown
    if fast_enough and (off if rate is None else rate.low > -settings.max_acceptance_loss):
        return verdict("promote", "It is not worse than the champion")
    if rate is not None and rate.high < 0:
        return verdict("reject", "It is surely accepted less than the champion")
    if time is not None and time.low > 0:
        return verdict("reject", "It is surely slower than the champion")
    if challenger.requests >= settings.max_requests:
        return verdict("undecided", f"No decision within {settings.max_requests} requests")
    if seconds >= settings.max_seconds:
        return verdict("undecided", f"No decision within {settings.max_seconds:g} seconds")
    return verdict("continue", "Not decided yet")


def judge_watch(champion: Moments, previous: Moments, settings: CanarySettings) -> Verdict:
    """Whether the champion goes back to the version before, by one window's evidence.

    Rolled back when it surely loses more acceptance, or surely adds more time per token, than the margins;
    wrongly with at most `watch_error_rate` a window where it stands at a margin, less where it is equal.
    """
    rate, time = _compared(
        champion,
        previous,
        settings,
        (settings.watch_error_rate, settings.watch_max_acceptance_loss, settings.watch_max_slowdown),
    )
    said = _numbers(champion, previous, rate, time)
    if rate is not None and rate.high < -settings.watch_max_acceptance_loss:
        return Verdict("rollback", f"It is accepted less than the version before: {said}.", rate, time)
    if time is not None and time.low > settings.watch_max_slowdown:
        return Verdict("rollback", f"It is slower than the version before: {said}.", rate, time)
    if rate is None and time is None:
        return Verdict("continue", f"Too few requests to compare it with the version before: {said}.")
    return Verdict("continue", f"It holds its own against the version before: {said}.", rate, time)


def _compared(
    new: Moments, old: Moments, settings: CanarySettings, limits: tuple[float, float, float]
) -> tuple[Bounds | None, Bounds | None]:
    """Bounds of acceptance and of time, each where there is enough evidence for it."""
    error_rate, loss, slower = limits
    if min(new.requests, old.requests) < settings.min_requests:
        return None, None
    enough = min(new.tested, old.tested) >= settings.min_tested_tokens and not (_is_off(new) or _is_off(old))
    rate = acceptance_difference(new, old, error_rate, loss) if enough else None
    return rate, slowdown(new, old, error_rate, slower)


def _is_off(arm: Moments) -> bool:
    return arm.tested < _OFF_BELOW * arm.emitted


def _numbers(new: Moments, old: Moments, rate: Bounds | None, time: Bounds | None) -> str:
    """The comparison in words."""
    counts = f"{new.requests:.0f} requests against {old.requests:.0f}"
    if rate is None:
        accepted = "acceptance not compared"
    else:
        accepted = (
            f"acceptance {new.acceptance_rate or 0:.3f} against {old.acceptance_rate or 0:.3f} "
            f"({rate.low:+.3f} to {rate.high:+.3f})"
        )
    if time is None:
        return f"{accepted}, time not compared, {counts}"
    return f"{accepted}, time per token {time.estimate:+.1%} ({time.low:+.1%} to {time.high:+.1%}), {counts}"
