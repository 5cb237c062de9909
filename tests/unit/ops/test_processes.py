"""Child processes end with the command that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redraft_ops.errors import ChildEnded
from redraft_ops.processes import Child, Children, sigterm_as_exit

PARENT = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(grandchild.pid, flush=True)
time.sleep(60)
"""


def start(folder: Path, code: str) -> tuple[Children, Child]:
    """A child of arbitrary code, in a group that will stop it."""
    log = folder / "child.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=output, stderr=output, start_new_session=True
        )
    child = Child("child", process, log)
    return Children(folder, children=[child]), child


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def read_pid(log: Path) -> int:
    for _ in range(100):
        if log.read_text().strip():
            return int(log.read_text())
        time.sleep(0.1)
    raise AssertionError("no pid")


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_a_childs_own_children_end_too(tmp_path: Path) -> None:
    children, child = start(tmp_path, PARENT)
    with children:
        grandchild = read_pid(child.log)
        assert alive(grandchild)
    assert child.process.poll() is not None
    time.sleep(0.2)
    assert not alive(grandchild)


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft_ops.processes.GRACE_SECONDS", 1.0)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    children, child = start(tmp_path, code)
    read_pid(child.log)
    children.stop()
    assert child.process.returncode == -signal.SIGKILL


def test_a_child_that_ended_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    children, child = start(tmp_path, "import sys; sys.exit('the port is taken')")
    child.process.wait()
    with pytest.raises(ChildEnded, match="child process ended with code 1: the port is taken"):
        children.check()


def test_sigterm_leaves_through_with_blocks() -> None:
    left = []

    def terminated() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            left.append(True)

    with sigterm_as_exit(), pytest.raises(SystemExit) as caught:
        terminated()
    assert caught.value.code == 143
    assert left == [True]
