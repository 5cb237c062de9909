"""Start a round's training process, follow its progress, and end it when the round ends.

Training has a process of its own: its memory, precision, CUDA context and crashes end with it. It writes
one JSON object per line to standard output; whatever else it or its libraries print goes to a log file.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from redraft_trainer.context import Progress
from redraft_trainer.errors import ChildFailed, Diverged, NoUsableSamples, RoundFailed, RoundTimeout
from redraft_trainer.settings import TrainerSettings

SPEC_FILE, RESULT_FILE, LOG_FILE, LAUNCH_FILE = "spec.json", "result.json", "child.log", "accelerate.yaml"
EVENT_PREFIX = "redraft-event "
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
_KINDS: dict[str, type[RoundFailed]] = {"Diverged": Diverged, "NoUsableSamples": NoUsableSamples}


def run_child(
    folder: Path,
    settings: TrainerSettings,
    *,
    device: str,
    progress: Progress,
    check: Callable[[], None],
    limit_seconds: float,
) -> dict[str, Any]:
    """Train and measure as `folder`/spec.json says; answers what the process wrote into result.json.

    `check` and `progress`, this one with the last event where there is no new one, are called about twice a
    second and may raise to end the training. Raises
    Diverged, ChildFailed with the last lines of the log, or RoundTimeout. The process is gone when this
    returns or raises.
    """
    (folder / RESULT_FILE).unlink(missing_ok=True)
    deadline = time.monotonic() + limit_seconds
    with (folder / LOG_FILE).open("ab") as log, _running(_command(folder, settings, device), log) as process:
        for event in _events(process, log, deadline, limit_seconds, check):
            progress(event)
        code = process.wait()
    return _result(folder, code)


def _command(folder: Path, settings: TrainerSettings, device: str) -> list[str]:
    """`accelerate launch` with a configuration of its own, so that a user's default one has no say."""
    on_cpu = _is_cpu(device)
    # One process on a CPU: accelerate starts several there through MPI only.
    processes = 1 if on_cpu else settings.num_processes
    launch = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "MULTI_GPU" if processes > 1 else "NO",
        "gpu_ids": device.partition(":")[2] or "all",
        "machine_rank": 0,
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": processes,
        "use_cpu": on_cpu,
    }
    # JSON is YAML too. The training process sets its precision itself: fp16 means something else on a CPU.
    (folder / LAUNCH_FILE).write_text(json.dumps(launch, indent=2))
    options = [
        "--config_file",
        str(folder / LAUNCH_FILE),
        "--num_cpu_threads_per_process",
        str(threads(settings)),
    ]
    # Quiet: a training that fails is told once, by itself, and not by the launcher's traceback as well.
    module = ["--quiet", "--module", "redraft_trainer.child", "--spec", str(folder / SPEC_FILE)]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, *module]


def _is_cpu(device: str) -> bool:
    if device != "auto":
        return device == "cpu"
    import torch

    return not torch.cuda.is_available()


def threads(settings: TrainerSettings) -> int:
    """CPU threads of the training process: as set, as OMP_NUM_THREADS says, or one per core."""
    wanted = settings.num_threads or int(os.environ.get("OMP_NUM_THREADS", "0") or 0)
    return wanted or len(os.sched_getaffinity(0))


@contextmanager
def _running(command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """The process in a group of its own, which is ended with all that it started."""
    # The training process ends when its standard input does: also if this process is killed outright.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        _end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _events(
    process: subprocess.Popen[str],
    log: IO[bytes],
    deadline: float,
    limit_seconds: float,
    check: Callable[[], None],
) -> Iterator[dict[str, Any]]:
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(process, lines), daemon=True, name="training-output").start()
    last: dict[str, Any] = {"stage": "start"}
    while True:
        check()
        if time.monotonic() > deadline:
            raise RoundTimeout(
                f"the training took more than {limit_seconds:.0f} s; "
                "lower max_steps or raise round_time_limit_seconds"
            )
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            # A callback that wants to end the round must not wait until a model is loaded.
            yield last
            continue
        if line is None:
            return
        if line.startswith(EVENT_PREFIX):
            last = json.loads(line.removeprefix(EVENT_PREFIX))
            yield last
        else:
            log.write(line.encode(errors="replace"))


def _pump(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    try:
        for line in process.stdout or ():
            lines.put(line)
    except ValueError:
        # Closed under us: the round has ended.
        pass
    lines.put(None)


def _result(folder: Path, code: int) -> dict[str, Any]:
    path = folder / RESULT_FILE
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if "error" in result:
        raise _KINDS.get(result["kind"], ChildFailed)(result["error"])
    if code != 0 or not result:
        raise ChildFailed(f"the training process ended with code {code} and no result: {_last_words(folder)}")
    return result


def _last_words(folder: Path, most: int = 400) -> str:
    text = (folder / LOG_FILE).read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-most:] or f"its log {LOG_FILE} is empty"
