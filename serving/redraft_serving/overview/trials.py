"""A domain's trial on live traffic, as people read it."""

from __future__ import annotations

from typing import Any


def trial_card(trials: Any, domain: str) -> dict[str, Any] | None:
    """The running canary or watch of a domain; None where there is none."""
    found: dict[str, Any] | None = None if trials is None else trials.card(domain)
    return found
