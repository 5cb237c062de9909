"""The training process waits between two steps, goes on from there, and counts what it waited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from redraft_trainer.child import main
from redraft_trainer.launch import launch_command
from redraft_trainer.orders import GO, WAIT, Orders, Teller
from redraft_trainer.settings import TrainerSettings

PROGRAM = """
import os, sys, time
from redraft_trainer.orders import Orders, Teller
orders = Orders()
orders.follow()
teller = Teller(lambda event: print(event["step"], event.get("paused"), flush=True), orders)
for step in range(10_000):
    teller({"stage": "train", "step": step})
    time.sleep(0.01)
"""


def test_a_pause_begins_between_two_steps_and_loses_none() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        steps: list[int] = []
        for line in child.stdout:
            step, paused = line.split()
            if paused == "True":
                break
            steps.append(int(step))
            if int(step) == 5:
                child.stdin.write(f"{WAIT}\n")
                child.stdin.flush()
        waited_at = steps[-1]
        # An order that comes twice, or is none, changes nothing.
        child.stdin.write(f"{WAIT}\nnonsense\n")
        child.stdin.flush()
        time.sleep(0.3)
        child.stdin.write(f"{GO}\n")
        child.stdin.flush()
        assert child.stdout.readline().split() == [str(waited_at), "False"]
        assert child.stdout.readline().split() == [str(waited_at + 1), "None"]
        # While it waits, it still ends with its parent.
        child.stdin.write(f"{WAIT}\n")
        child.stdin.flush()
        for line in child.stdout:
            if line.split()[1] == "True":
                break
        child.stdin.close()
        assert child.wait(20) == 3
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_waiting_counts_for_no_stage() -> None:
    orders = Orders()
    events: list[dict[str, Any]] = []
    teller = Teller(events.append, orders)
    teller({"stage": "load"})
    teller({"stage": "validate", "step": 0})
    orders.hear(WAIT)
    threading.Timer(0.4, orders.hear, [GO]).start()
    teller({"stage": "train", "step": 1})
    teller({"stage": "measure"})
    facts = teller.facts()
    assert set(facts["seconds"]) == {"load", "train", "measure"}
    assert sum(facts["seconds"].values()) < 0.3
    assert 0.3 < facts["paused_seconds"] < 5
    assert teller.paused["train"] == pytest.approx(facts["paused_seconds"], abs=1e-3)
    assert facts["child_peak_mb"] > 10
    assert [event.get("paused") for event in events] == [None, None, None, True, False, None]


def test_a_specification_that_can_not_be_read_is_a_failure_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.json").write_text("{")
    child = subprocess.run(
        [sys.executable, "-m", main.__module__, "--spec", str(tmp_path / "spec.json")],
        stdin=subprocess.PIPE,
        capture_output=True,
        check=False,
    )
    # Standard input ended at once here, which may be noticed first.
    if child.returncode != 3:
        assert "JSONDecodeError" in json.loads((tmp_path / "result.json").read_text())["error"]


LOWER = "from redraft_trainer.priority import stand_back\nstand_back('idle')\n"
WORK = "import torch\n(torch.randn(500, 500) @ torch.randn(500, 500)).sum()\n"
IDLE_ALREADY = hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE
ASK = """
import os
tasks = [int(name) for name in os.listdir("/proc/self/task")]
print({os.sched_getscheduler(task) for task in tasks} == {os.SCHED_IDLE}, len(tasks) > 1)
print(open("/proc/self/oom_score_adj").read())
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has the idle class")
@pytest.mark.skipif(IDLE_ALREADY, reason="all that this run starts is in the idle class")
@pytest.mark.parametrize(("program", "all_of_them"), [(LOWER + WORK, "True"), (WORK + LOWER, "False")])
def test_all_threads_of_a_training_run_in_the_idle_class(program: str, all_of_them: str) -> None:
    """Each thread keeps what it was born with: lowered too late, torch's own would stay as they are."""
    child = subprocess.run(
        [sys.executable, "-c", program + ASK],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert child.stdout.split() == [all_of_them, "True", "1000"]


def test_the_launcher_is_our_own_which_lowers_itself_first(tmp_path: Path) -> None:
    command = launch_command(tmp_path, TrainerSettings(), "cpu")
    assert command[1:4] == ["-m", "redraft_trainer.launch", "idle"]
