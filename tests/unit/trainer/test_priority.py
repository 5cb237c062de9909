"""A training stands behind serving also where the kernel counts priorities by session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
TELL = """
from pathlib import Path
from redraft_trainer.priority import stand_back
stand_back({priority!r})
print(Path("/proc/self/autogroup").read_text().split()[-1])
"""


def group_niceness(priority: str, own_session: bool) -> int:
    command = [sys.executable, "-c", TELL.format(priority=priority)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=own_session)
    return int(done.stdout)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel keeps no groups of sessions")
def test_the_group_of_the_training_s_own_session_is_lowered() -> None:
    """Without it the idle class yields within its session alone, and serving lives in another one."""
    before = int(AUTOGROUP.read_text().split()[-1])
    assert group_niceness("idle", own_session=True) == 19
    assert group_niceness("low", own_session=True) == 0, "a machine that is never quiet lets it work on"
    assert group_niceness("idle", own_session=False) == before, "others live in that session too"
