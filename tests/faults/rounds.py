"""Where a training round is at this moment, and its processes: what a test needs to hit it there."""

from __future__ import annotations

from pathlib import Path

from redraft_queue.lock import holder

from .deployment import Deployment
from .probes import until

WAIT_SECONDS = 180.0


def running(deployment: Deployment, domain: str = "default") -> str | None:
    """Id of the round that holds the domain's lock."""
    return holder(deployment.valkey.client(), domain)


def a_child(deployment: Deployment) -> tuple[str, int]:
    """Wait for a round whose training process has not written a candidate; returns both ids."""
    found: list[tuple[str, int]] = []

    def works() -> bool:
        now = running(deployment)
        folder = deployment.folder / "data" / "rounds" / str(now)
        if now is not None and not (folder / "candidate").exists():
            found[:] = [(now, child) for child in children(folder)]
        return bool(found)

    until(works, WAIT_SECONDS, "no training process")
    return found[0]


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
