"""Serving on the same machine comes first: how training stands back.

Priorities count within a control group: where serving and training run in two containers, the runtime's own
weights (`cpu_shares`, `cpus`) decide between them. On Linux they may count within a session only (autogroup,
sched(7)): then the niceness of the session's whole group is what tells it from others.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from redraft_trainer.settings import Priority

LOW, LEAST = 10, 19
"""Niceness: a tenth of what an ordinary process gets of a contended core, and as little as there is."""
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_AUTOGROUP = Path("/proc/self/autogroup")
_FIRST = "1000"
"""The process that a machine without memory ends before all others (proc(5))."""


def stand_back(priority: Priority) -> None:
    """Lower this process and what it starts from now on: "idle" gets a core only while nothing else wants it.

    To be called before torch makes its threads, each of which keeps what it was born with. On Linux the idle
    class (sched(7)); elsewhere the highest niceness. It is also the first one to go where memory runs out: a
    round can be repeated, a request can't.
    """
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(_FIRST)
    if priority == "low":
        give_way(LOW)
        return
    _lower_group()
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
    give_way(LEAST)


def _lower_group() -> None:
    """The highest niceness for the session's group, if the kernel keeps one and the session is our own."""
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(LEAST))


def give_way(niceness: int = LOW) -> None:
    """At least this niceness for the present thread and what it starts, whatever it had before."""
    present = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(present, niceness))
