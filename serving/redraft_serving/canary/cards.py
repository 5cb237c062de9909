"""A trial as plain values: for /v1/drafts and the dashboard, and as tags of the version it decides about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from redraft_serving.canary.moments import Moments
from redraft_serving.canary.sequential import Bounds
from redraft_serving.canary.trial import Trial
from redraft_serving.canary.verdict import Verdict
from redraft_serving.engine.interface import CHAMPION, Arm

_DIGITS = 4
_TIME_DIGITS = 6


def trial_card(
    trial: Trial, share: float, sums: Mapping[Arm, Moments], verdict: Verdict | None
) -> dict[str, Any]:
    """One trial. What has no data yet is null, never NaN."""
    return {
        "kind": trial.kind,
        "id": trial.id,
        "version": trial.other if trial.kind == "canary" else trial.champion,
        "against": trial.champion if trial.kind == "canary" else trial.other,
        "share": share,
        "window": trial.window,
        "started_ms": trial.started_ms or None,
        "arms": {arm: _arm(trial, arm, sums.get(arm, Moments())) for arm in (CHAMPION, trial.arm)},
        "acceptance_difference": _bounds(verdict.acceptance if verdict else None),
        "slowdown": _bounds(verdict.slowdown if verdict else None),
        "outcome": verdict.outcome if verdict else "continue",
        "sentence": verdict.sentence if verdict else "Nothing was compared yet.",
    }


def trial_tags(trial: Trial, sums: Mapping[Arm, Moments], verdict: Verdict) -> dict[str, object]:
    """The live numbers behind a decision, as tags of the version; None where there are none."""
    new, old = sums[trial.arm], sums[CHAMPION]
    if trial.kind == "watch":
        new, old = old, new
    tags: dict[str, object] = {
        "requests": round(new.requests),
        "against": trial.champion if trial.kind == "canary" else trial.other,
        "against_requests": round(old.requests),
        "tested_tokens": round(new.tested),
        "acceptance_rate": _rounded(new.acceptance_rate),
        "against_acceptance_rate": _rounded(old.acceptance_rate),
        "seconds_per_token": _rounded(new.seconds_per_token, _TIME_DIGITS),
        "against_seconds_per_token": _rounded(old.seconds_per_token, _TIME_DIGITS),
    }
    for name, bounds in (("acceptance_difference", verdict.acceptance), ("slowdown", verdict.slowdown)):
        if bounds is not None:
            tags[name] = _rounded(bounds.estimate)
            tags[f"{name}_low"] = _rounded(bounds.low)
            tags[f"{name}_high"] = _rounded(bounds.high)
    return {f"{trial.kind}_{name}": value for name, value in tags.items()}


def _arm(trial: Trial, arm: Arm, sums: Moments) -> dict[str, Any]:
    return {
        "version": trial.version_of(arm),
        "requests": round(sums.requests),
        "tested": round(sums.tested),
        "accepted": round(sums.accepted),
        "emitted": round(sums.emitted),
        "acceptance_rate": _rounded(sums.acceptance_rate),
        "seconds_per_token": _rounded(sums.seconds_per_token, _TIME_DIGITS),
    }


def _bounds(bounds: Bounds | None) -> dict[str, float | None] | None:
    if bounds is None:
        return None
    return {
        "estimate": _rounded(bounds.estimate),
        "low": _rounded(bounds.low),
        "high": _rounded(bounds.high),
    }


def _rounded(value: float | None, digits: int = _DIGITS) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)
