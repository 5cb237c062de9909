"""Keeps a choice until another is clearly better, and never goes back and forth.

A mode belongs to one composition of a batch (how many rows of which kinds): rows that come and go, or n-gram
matches that do, change the composition, and that is no change of mind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from redraft_serving.policy.choose import Choice
from redraft_serving.policy.settings import PolicySettings
from redraft_serving.policy.workload import Workload

Composition = tuple[tuple[int, int], ...]
"""(kind, rows) for each kind in the batch, in order."""

MAX_MODES = 1024
FLOOR = 0.1
"""Share of the margin that an old choice still has."""


class Mode:
    """What is done with one composition, and what was done before."""

    __slots__ = ("_left", "choice", "curious_at", "looked_at", "plain", "rate", "since", "vetoed", "workload")

    def __init__(self, choice: Choice, clock: int) -> None:
        self.choice, self.since, self.looked_at = choice, clock, clock
        self._left: dict[tuple[int, tuple[str | None, int]], int] = {}
        self.rate = self.plain = 0.0
        """Tokens per second of the choice and of plain decoding, as modelled when last looked at."""
        self.workload: Workload | None = None
        self.vetoed: tuple[int, ...] = ()
        """Groups that may not speculate."""
        self.curious_at = 0
        """Round of the last look at what is little known."""

    def left(self, group: int, part: tuple[str | None, int], since: int) -> bool:
        """Whether a group left a part after round `since`."""
        round_left = self._left.get((group, part))
        return round_left is not None and round_left >= since

    def barred(self, choice: Choice, since: int) -> bool:
        """Whether a choice would take a group back to what it left after round `since`."""
        parts = [(g, choice.part(g)) for g in range(len(choice.proposers))]
        return any(part != self.choice.part(g) and self.left(g, part, since) for g, part in parts)

    def move(self, choice: Choice, clock: int) -> list[int]:
        """Change to another choice; returns the groups that it changes."""
        changed = [g for g in range(len(choice.proposers)) if choice.part(g) != self.choice.part(g)]
        for g in changed:
            self._left[g, self.choice.part(g)] = clock
        self.choice, self.since = choice, clock
        return changed


class Modes:
    """The modes of the compositions met lately."""

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._modes: OrderedDict[Composition, Mode] = OrderedDict()

    def get(self, composition: Composition) -> Mode | None:
        """The mode of a composition that was met before."""
        mode = self._modes.get(composition)
        if mode is not None:
            self._modes.move_to_end(composition)
        return mode

    def clear(self) -> None:
        """Forget all compositions."""
        self._modes.clear()

    def settle(
        self, composition: Composition, workload: Workload, clock: int, vetoed: Sequence[int] = ()
    ) -> tuple[Mode, list[int]]:
        """Decide anew; returns the mode and the groups whose part changed."""
        mode = self._modes.get(composition)
        changed: list[int] = []
        if mode is None:
            mode = Mode(workload.choice(max(workload.options())), clock)
            self._add(composition, mode)
        else:
            changed = self._reconsider(mode, workload, clock, any(mode.choice.part(g)[1] for g in vetoed))
        mode.looked_at, mode.workload, mode.vetoed = clock, workload, tuple(vetoed)
        mode.rate, mode.plain = workload.rate(mode.choice), workload.rate(workload.plain)
        return mode, changed

    def _add(self, composition: Composition, mode: Mode) -> None:
        self._modes[composition] = mode
        if len(self._modes) > MAX_MODES:
            self._modes.popitem(last=False)

    def _reconsider(self, mode: Mode, workload: Workload, clock: int, forced: bool) -> list[int]:
        needed = 0.0 if forced else workload.rate(mode.choice) * (1.0 + self._margin(clock - mode.since))
        better = sorted((option for option in workload.options() if option[0] > needed), reverse=True)
        choices = [choice for choice in map(workload.choice, better) if choice != mode.choice]
        since = clock - self._settings.dwell_rounds
        allowed = [choice for choice in choices if not mode.barred(choice, since)]
        if forced and not allowed:
            allowed = choices
        return mode.move(allowed[0], clock) if allowed else []

    def _margin(self, age: int) -> float:
        """Full for a fresh choice; an old one yields to smaller gains, so that none is lost for good."""
        dwell = self._settings.dwell_rounds
        return self._settings.switch_margin * min(1.0, max(FLOOR, dwell / max(1, age)))
