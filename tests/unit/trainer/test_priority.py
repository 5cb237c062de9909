"""A training stands behind serving also where the kernel counts priorities by session."""

from __future__ import annotations

import subprocess
import sys

import pytest

TELL = """
import contextlib
from pathlib import Path
from redraft_trainer.priority import stand_back
if {priority!r}:
    stand_back({priority!r})
with contextlib.suppress(OSError):
    print(Path("/proc/self/autogroup").read_text())
"""


def group(priority: str, own_session: bool) -> str:
    """What the kernel says of the group of a session, as `/autogroup-7 nice 0`; empty where it keeps none.

    It keeps none for a session begun before groups were switched on, such as a container's first one.
    """
    command = [sys.executable, "-c", TELL.format(priority=priority)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=own_session)
    return done.stdout.strip()


def test_the_group_of_the_training_s_own_session_is_lowered() -> None:
    """Without it the idle class yields within its session alone, and serving lives in another one."""
    if not group("", own_session=True):
        pytest.skip("this kernel keeps no groups of sessions")
    assert group("idle", own_session=True).endswith(" nice 19")
    assert group("low", own_session=True).endswith(" nice 0"), "a machine that is never quiet lets it work on"


def test_a_session_that_others_live_in_keeps_its_group() -> None:
    before = group("", own_session=False)
    assert group("idle", own_session=False) == before
