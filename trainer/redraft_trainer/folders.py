"""What failed rounds leave on the disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from redraft_trainer.plan import load_plan

ABANDONED_SECONDS = 3600.0
"""A round writes its plan right after it makes its folder; one that has none for so long never will."""


def sweep(folder: Path, domain: str) -> None:
    """Remove the folders of other rounds of a domain, whose lock is held, so that none of them is running.

    A full disk leaves folders without a plan, which are anybody's once they are old.
    """
    for other in folder.parent.glob("*"):
        plan = load_plan(other)
        ours = plan.domain == domain if plan is not None else _abandoned(other)
        if other != folder and ours:
            shutil.rmtree(other, ignore_errors=True)


def _abandoned(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime > ABANDONED_SECONDS
    except OSError:
        return False
