"""Which requests belong to a trial's smaller arm: the same ones on every worker, and on every retry."""

from __future__ import annotations

import hashlib

_BYTES = 8
_RANGE = float(1 << (8 * _BYTES))


def position(request_id: str, domain: str, trial_id: str) -> float:
    """A number in [0, 1) that these three determine; uniform and independent between requests and trials."""
    text = "\0".join((domain, trial_id, request_id)).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=_BYTES).digest(), "big") / _RANGE


def in_share(request_id: str, domain: str, trial_id: str, share: float) -> bool:
    """Whether the request is one of the `share` that the smaller arm serves."""
    return position(request_id, domain, trial_id) < share
