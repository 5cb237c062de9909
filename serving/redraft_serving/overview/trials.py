"""A domain's trial on live traffic with the limits that it is judged by."""

from __future__ import annotations

from typing import Any

from redraft_serving.canary.trials import Trials


def trial_card(trials: Trials | None, domain: str) -> dict[str, Any] | None:
    """The running canary or watch of a domain as /v1/drafts has it, and its `limits`; None where none runs.

    `limits`: the difference of acceptance that it may not fall below, and the slowdown it may not exceed.
    """
    found = None if trials is None else trials.card(domain)
    if trials is None or found is None:
        return None
    settings = trials.settings
    loss, slower = settings.max_acceptance_loss, settings.max_slowdown
    if found["kind"] == "watch":
        loss, slower = settings.watch_max_acceptance_loss, settings.watch_max_slowdown
    return {**found, "limits": {"acceptance_difference": -loss, "slowdown": slower}}
