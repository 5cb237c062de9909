"""A server whose keeper was killed: it must not append to its file beside the next one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05


def remember(file: Path, pid: int) -> None:
    """Note the process of a server that was started."""
    file.write_text(str(pid))


def end_orphan(file: Path) -> None:
    """End the process that `file` names, if it still works in the folder of `file`: numbers are used again.

    Where there is no /proc to look at, nothing is done.
    """
    try:
        pid = int(file.read_text())
    except (OSError, ValueError):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _runs(pid, file.parent):
            return
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while _runs(pid, file.parent) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _runs(pid: int, folder: Path) -> bool:
    """A server changes what its command line says, but not where it works; a dead one works nowhere."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve(strict=True) == folder.resolve()
    except OSError:
        return False
