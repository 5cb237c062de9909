"""Every Redis key of redraft."""

from __future__ import annotations

import re

from redraft_queue.errors import BadName

PREFIX = "redraft:"
CELERY_PREFIX = "redraft:celery:"
"""Before every key of broker and result backend, so that another Celery application may share the server."""

EVENTS = "redraft:events"
"""Pub/sub channel: a champion has moved."""

DOMAINS = "redraft:domains"
"""Set of the domains that ever had a sample."""

# The registry's names are made of domains too, and begin like this.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """`name`, if it may be a domain or a role. Raises BadName otherwise."""
    if not _NAME.fullmatch(name):
        raise BadName(
            f"{name!r:.80} is no name: use 1 to 64 letters, digits, '.', '_' or '-', first a letter or digit"
        )
    return name


def samples(domain: str) -> str:
    """Stream of the domain's samples; one field, `sample`."""
    return f"redraft:samples:{check_name(domain)}"


def dead(domain: str) -> str:
    """Stream of entries that can't be used; fields `entry` (their id), `reason`, `sample` (their start)."""
    return f"{samples(domain)}:dead"


def dead_entries(domain: str) -> str:
    """Sorted set of the ids behind `dead`, so that a second reading of an entry adds nothing."""
    return f"{samples(domain)}:dead:entries"


def tokens(domain: str) -> str:
    """Counter of the output tokens ever appended to `samples`."""
    return f"redraft:tokens:{check_name(domain)}"


def forgotten(domain: str) -> str:
    """Sorted set of the ids of samples deleted on request, so that they don't count as lost."""
    return f"{samples(domain)}:forgotten"


def schedule(domain: str) -> str:
    """Hash: when a round of the domain was last asked for, and how the last one ended."""
    return f"redraft:schedule:{check_name(domain)}"


def round_lock(domain: str) -> str:
    """Lock of the domain's training round."""
    return f"redraft:lock:round:{check_name(domain)}"


def heartbeat(role: str, host: str, pid: int) -> str:
    """One process's sign of life; it expires."""
    return f"redraft:heartbeat:{check_name(role)}:{host}:{pid}"


HEARTBEATS = "redraft:heartbeats"
"""Set of the keys of all processes' heartbeats: to search the server for them would cost it a look at every
key that it holds, finished rounds and other applications' included."""


def heartbeats_of(role: str) -> str:
    """What the heartbeats of one role begin with."""
    return f"redraft:heartbeat:{check_name(role)}:"


def trial(domain: str, trial_id: str) -> str:
    """Hash of a trial's evidence: one field per worker and arm, each its sums so far."""
    return f"redraft:trial:{check_name(domain)}:{check_name(trial_id)}"


def trial_window(domain: str) -> str:
    """Hash of the domain's watches: the number of each one's present window."""
    return f"redraft:trial:{check_name(domain)}:windows"


def trial_lock(domain: str) -> str:
    """Lock of whoever decides on the domain's trial."""
    return f"redraft:lock:trial:{check_name(domain)}"
