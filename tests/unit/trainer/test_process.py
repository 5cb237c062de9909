"""The border between a worker and its training process, with small stand-ins for the training itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from redraft_trainer import process
from redraft_trainer.errors import ChildFailed, Diverged, OutOfMemory, RoundTimeout
from redraft_trainer.launch import launch_command
from redraft_trainer.process import EVENT_PREFIX, run_child
from redraft_trainer.settings import TrainerSettings

SETTINGS = TrainerSettings(num_threads=1)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose Python runs instead of the training; `FOLDER` is the round's folder there."""
    path = tmp_path / "script.py"
    head = f"import json, os, signal, sys, time\nfrom pathlib import Path\nFOLDER = Path({str(tmp_path)!r})\n"

    def command(folder: Path, settings: TrainerSettings, device: str) -> list[str]:
        return [sys.executable, "-c", head + path.read_text()]

    monkeypatch.setattr(process, "launch_command", command)
    return path


def run(
    folder: Path, limit_seconds: float = 30.0, **kwargs: Any
) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    events: list[Mapping[str, Any]] = []
    handlers: dict[str, Any] = {"progress": events.append, "check": lambda: None, **kwargs}
    result = run_child(folder, SETTINGS, device="cpu", limit_seconds=limit_seconds, **handlers)
    return result, events


def test_events_and_result_arrive_and_other_output_goes_to_the_log(script: Path, tmp_path: Path) -> None:
    script.write_text(
        f"print('chatter')\nprint({EVENT_PREFIX!r} + json.dumps({{'stage': 'train', 'step': 1}}))\n"
        "(FOLDER / 'result.json').write_text(json.dumps({'sha256': 'x'}))"
    )
    result, events = run(tmp_path)
    assert result == {"sha256": "x"}
    # The last event is repeated while nothing new comes.
    assert {event["stage"] for event in events} <= {"start", "train"}
    assert events[-1] == {"stage": "train", "step": 1}
    assert "chatter" in (tmp_path / "child.log").read_text()


def test_output_that_is_no_text_does_not_stop_the_reading(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "os.write(1, b'\\xff\\n' + 200_000 * b'chatter\\n')\n"
        "(FOLDER / 'result.json').write_text(json.dumps({'sha256': 'x'}))"
    )
    assert run(tmp_path)[0] == {"sha256": "x"}


def test_a_process_that_hangs_at_its_end_runs_into_the_limit(script: Path, tmp_path: Path) -> None:
    script.write_text("os.close(1)\ntime.sleep(60)")
    began = time.monotonic()
    with pytest.raises(RoundTimeout):
        run(tmp_path, limit_seconds=2.0)
    assert time.monotonic() - began < 40


def test_a_named_failure_keeps_its_kind(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "(FOLDER / 'result.json').write_text(json.dumps({'error': 'the loss is nan', 'kind': 'Diverged'}))\n"
        "sys.exit(1)"
    )
    with pytest.raises(Diverged, match="the loss is nan"):
        run(tmp_path)


def test_a_process_that_was_killed_names_the_signal_and_what_it_held(script: Path, tmp_path: Path) -> None:
    """The launcher answers 128 + n where the training process was ended by signal n."""
    event = {"stage": "train", "step": 7, "peak_mb": 812}
    script.write_text(f"print({EVENT_PREFIX!r} + {json.dumps(event)!r}, flush=True)\nsys.exit(137)")
    with pytest.raises(
        OutOfMemory, match=r"signal 9 in stage train, step 7 and 812 MB.*likely out of memory"
    ):
        run(tmp_path)
    script.write_text("sys.exit(139)")
    with pytest.raises(ChildFailed, match="signal 11 in stage start"):
        run(tmp_path)


@pytest.mark.parametrize(
    "body", ["raise MemoryError('no room')", "print('no room', file=sys.stderr); os.kill(os.getpid(), 9)"]
)
def test_a_crash_tells_its_last_words(script: Path, tmp_path: Path, body: str) -> None:
    script.write_text(body)
    with pytest.raises(ChildFailed, match="no room"):
        run(tmp_path)


def test_a_result_of_an_earlier_delivery_is_not_taken(script: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"sha256": "old"}))
    script.write_text("pass")
    with pytest.raises(ChildFailed, match="no result"):
        run(tmp_path)


SLEEPER = "(FOLDER / 'pid').write_text(str(os.getpid())); time.sleep(60)"


def gone(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_the_limit_ends_the_process(script: Path, tmp_path: Path) -> None:
    script.write_text(SLEEPER)
    with pytest.raises(RoundTimeout, match="max_steps"):
        run(tmp_path, limit_seconds=2.0)
    assert gone(tmp_path)


def test_a_progress_callback_can_end_the_round_before_the_first_event(script: Path, tmp_path: Path) -> None:
    script.write_text(SLEEPER)

    def stop(event: Mapping[str, Any]) -> None:
        assert event == {"stage": "start"}
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=stop)
    assert gone(tmp_path)


def test_a_check_that_raises_ends_the_process(script: Path, tmp_path: Path) -> None:
    script.write_text("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER)

    def check() -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, check=check)
    assert gone(tmp_path)


def test_the_training_process_ends_with_its_worker() -> None:
    """Its standard input ends when the worker dies, however it dies."""
    code = "import time\nfrom redraft_trainer.orders import Orders\nOrders().follow()\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    time.sleep(0.2)
    assert child.poll() is None
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(20) == 3


def test_the_launch_names_everything_itself(tmp_path: Path) -> None:
    """A user's default configuration of accelerate has no say; on a CPU there is one process."""
    several = TrainerSettings(num_processes=4, num_threads=3)
    on_cpu = launch_command(tmp_path, several, "cpu")
    assert on_cpu[1:3] == ["-m", "redraft_trainer.launch"]
    assert on_cpu[on_cpu.index("--num_cpu_threads_per_process") + 1] == "3"
    launch = json.loads((tmp_path / "accelerate.yaml").read_text())
    assert (launch["num_processes"], launch["use_cpu"], launch["distributed_type"]) == (1, True, "NO")
    launch_command(tmp_path, several, "cuda:1")
    launch = json.loads((tmp_path / "accelerate.yaml").read_text())
    assert launch["gpu_ids"] == "1"
    assert (launch["num_processes"], launch["use_cpu"], launch["distributed_type"]) == (4, False, "MULTI_GPU")
