"""Room for serving: when a training may go on, from the load that serving workers say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pydantic import ValidationError
from redraft_queue.errors import StreamUnavailable
from redraft_queue.load import Load
from redraft_trainer.room import LOOK_SECONDS, Room
from redraft_trainer.settings import TrainerSettings

QUIET, BUSY = Load(workers=1), Load(workers=1, running=2, waiting=1)


@dataclass
class Machine:
    """A clock that is turned by hand, a load, and a training process that waits where it is told to after
    `step_seconds` of its own.
    """

    now: float = 0.0
    load: Load = QUIET
    away: bool = False
    step_seconds: float = 0.0

    def serving(self) -> Load:
        if self.away:
            raise StreamUnavailable("gone")
        return self.load

    def shares(self, room: Room, seconds: float) -> float:
        """Share of the time in which the training process really worked."""
        paused, told_at, worked, ticks = False, None, 0, round(seconds / LOOK_SECONDS)
        for _ in range(ticks):
            go = room.may_run(paused)
            if go:
                paused, told_at = False, None
            else:
                told_at = self.now if told_at is None else told_at
                paused = self.now - told_at >= self.step_seconds
            worked += not paused
            self.now += LOOK_SECONDS
        return worked / ticks


def room_of(machine: Machine, yield_to_serving: str, **changes: float) -> Room:
    settings = TrainerSettings(yield_to_serving=yield_to_serving, **changes)  # type: ignore[arg-type]
    return Room(settings, machine.serving, clock=lambda: machine.now)


def test_never_asks_nobody() -> None:
    machine = Machine(load=BUSY, away=True)
    room = room_of(machine, "never")
    assert machine.shares(room, 60) == 1.0
    assert room.paused_seconds == 0.0


def test_idle_trains_only_while_no_request_runs_or_waits() -> None:
    machine = Machine()
    room = room_of(machine, "idle")
    assert machine.shares(room, 20) == 1.0
    machine.load = Load(workers=1, waiting=1)
    assert machine.shares(room, 20) == 0.0
    machine.load = QUIET
    assert machine.shares(room, 20) == 1.0
    assert room.paused_seconds == pytest.approx(20, abs=1)


def test_requests_shorter_than_a_look_count_too() -> None:
    """None runs when the worker says its load; its inference thread has worked all the same."""
    machine = Machine(load=Load(workers=1, busy_seconds=10.0))
    room = room_of(machine, "idle")
    assert room.may_run(paused=False)
    machine.now, machine.load = 1.0, Load(workers=1, busy_seconds=10.2)
    assert not room.may_run(paused=False)
    machine.now = 2.0
    assert room.may_run(paused=True)


@pytest.mark.parametrize(("budget", "share"), [("50%", 0.5), ("20%", 0.2), ("5%", 0.05)])
@pytest.mark.parametrize("step_seconds", [0.0, 4.0])
def test_a_budget_is_kept_however_long_a_step_is(budget: str, share: float, step_seconds: float) -> None:
    """To count from the order to wait, and not from the waiting, would give long steps several times their
    share.
    """
    machine = Machine(load=BUSY, step_seconds=step_seconds)
    assert machine.shares(room_of(machine, budget), 1600) == pytest.approx(share, abs=0.03)


def test_a_quiet_spell_is_not_saved_up() -> None:
    machine = Machine()
    room = room_of(machine, "10%")
    machine.shares(room, 600)
    machine.load = BUSY
    assert machine.shares(room, 60) < 0.2


def test_the_waiting_has_a_limit() -> None:
    machine = Machine(load=BUSY)
    room = room_of(machine, "idle", max_pause_seconds=30.0)
    machine.shares(room, 40)
    assert room.paused_seconds == pytest.approx(30, abs=1)
    assert machine.shares(room, 600) == 1.0


def test_what_is_not_known_stops_no_training() -> None:
    machine = Machine(load=BUSY)
    room = room_of(machine, "idle")
    assert machine.shares(room, 10) == 0.0
    machine.away = True
    machine.now += LOOK_SECONDS
    assert room.may_run(paused=True)


@pytest.mark.parametrize("wrong", ["always", "0%", "100%", "5", "-5%", "1.5%"])
def test_a_setting_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        TrainerSettings(yield_to_serving=wrong)


def test_several_processes_never_wait() -> None:
    """A pause of one would run the others into the time limit of their exchange."""
    with pytest.raises(ValidationError, match="num_processes"):
        TrainerSettings(yield_to_serving="idle", num_processes=2)


def test_looks_are_half_a_second_apart() -> None:
    machine, looks = Machine(), []

    def serving() -> Load:
        looks.append(machine.now)
        return QUIET

    clock: Callable[[], float] = lambda: machine.now  # noqa: E731
    room = Room(TrainerSettings(yield_to_serving="idle"), serving, clock)
    for tick in range(100):
        machine.now = tick / 10
        room.may_run(paused=False)
    assert len(looks) == pytest.approx(20, abs=1)
