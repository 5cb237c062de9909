"""What a trial compares: the champion with one other version that serves a share of the domain's requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redraft_serving.engine.interface import CHALLENGER, CHAMPION, PREVIOUS, Arm

Kind = Literal["canary", "watch"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a domain. Two workers that name the same versions mean the same trial.

    `other` is the version beside the champion: the challenger of a canary, the version before in a watch.
    """

    domain: str
    kind: Kind
    champion: int | str
    other: int | str
    window: int = 0
    """Of a watch: how many windows have ended before this one."""
    started_ms: int = 0
    """When a canary began, in milliseconds since 1970; 0: unknown."""

    @property
    def arm(self) -> Arm:
        """The arm beside the champion."""
        return CHALLENGER if self.kind == "canary" else PREVIOUS

    @property
    def name(self) -> str:
        """The trial without its window."""
        if self.kind == "canary":
            return f"canary-{self.other}-{self.champion}"
        return f"watch-{self.champion}-{self.other}"

    @property
    def id(self) -> str:
        """Names the evidence: other versions or another window are another trial."""
        return self.name if self.kind == "canary" else f"{self.name}-{self.window}"

    def version_of(self, arm: Arm) -> int | str | None:
        """What serves an arm; None where the trial has no such arm."""
        return {CHAMPION: self.champion, self.arm: self.other}.get(arm)
