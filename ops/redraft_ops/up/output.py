"""The log files of the parts: kept within a size, and read for their last words.

A part writes into its file directly, so neither a slow nor a dead supervisor holds it up. The file is cut by
copying it away and emptying it in place, which works because a part appends; a line that is written between
the two steps may be lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LAST_BYTES = 4000
LAST_LINES = 3
LAST_CHARACTERS = 400


def rotate(log: Path, most_bytes: int, kept: int) -> bool:
    """Move a log that is larger than `most_bytes` to `<log>.1`, older ones one number up; True if it was.

    `kept` old files stay. A full disk leaves the log as it is.
    """
    try:
        if log.stat().st_size <= most_bytes:
            return False
        for number in range(kept, 1, -1):
            older = _old(log, number - 1)
            if older.exists():
                older.replace(_old(log, number))
        if kept:
            shutil.copyfile(log, _old(log, 1))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def last_words(log: Path, since: int = 0) -> str:
    """The end of what a log says after byte `since`, in one line."""
    try:
        with log.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            # A log that was cut in the meantime is shorter than where the part began.
            lines.seek(max(since if since <= size else 0, size - LAST_BYTES))
            text = lines.read().decode(errors="replace")
    except OSError:
        return ""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    words = " | ".join(said[-LAST_LINES:])
    return words if len(words) <= LAST_CHARACTERS else f"... {words[-LAST_CHARACTERS:]}"


def _old(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
