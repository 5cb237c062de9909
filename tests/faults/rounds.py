"""Where a training round is at this moment, and its processes: what a test needs to hit it there."""

from __future__ import annotations

import json
from pathlib import Path

from redraft_queue.lock import holder

from .deployment import Deployment, Process, until

WAIT_SECONDS = 90.0


def running(deployment: Deployment, domain: str = "default") -> str | None:
    """Id of the round that holds the domain's lock."""
    return holder(deployment.valkey.client(), domain)


def folders(deployment: Deployment) -> list[Path]:
    """Of rounds that have fixed their range."""
    return [path.parent for path in (deployment.folder / "data" / "rounds").glob("*/plan.json")]


def a_round(deployment: Deployment) -> str:
    """Wait for a round that goes beyond its plan; returns its id."""
    found: list[str] = []

    def begun() -> bool:
        now = running(deployment)
        found[:] = [path.name for path in folders(deployment) if path.name == now]
        return bool(found)

    until(begun, WAIT_SECONDS, "no round begins")
    return found[0]


def a_fresh_round(deployment: Deployment) -> str:
    """Wait for the beginning of a round."""
    before = running(deployment)
    until(lambda: running(deployment) != before or before is None, WAIT_SECONDS, "the round does not end")
    until(lambda: running(deployment) not in (None, before), WAIT_SECONDS, "no round begins")
    return a_round(deployment)


def children(folder: Path) -> list[int]:
    """Training processes (not their launcher) that work in a round's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            here = any(str(folder).encode() in word for word in words)
            if here and any(b"redraft_trainer" in word and b"child" in word for word in words):
                found.append(int(entry.name))
    launchers = {pid for pid in found if b"launch" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    return [pid for pid in found if pid not in launchers]


def owner(deployment: Deployment, round_id: str, workers: list[Process]) -> Process:
    """The worker that runs a round: the one whose log names it last."""
    named = {worker.name: worker.log.read_text(errors="replace").rfind(round_id) for worker in workers}
    last = [w for w in workers if named[w.name] >= 0 and not _skipped(w, round_id)]
    assert last, f"no worker has taken round {round_id}"
    return last[0]


def _skipped(worker: Process, round_id: str) -> bool:
    return f"round {round_id} of domain default is skipped" in worker.log.read_text(errors="replace")


def plan(folder: Path) -> dict[str, object]:
    """The range of a round."""
    return dict(json.loads((folder / "plan.json").read_text()))
