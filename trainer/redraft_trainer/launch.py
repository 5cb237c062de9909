"""`python -m redraft_trainer.launch PRIORITY ...`: accelerate's launcher, lowered with all that it starts.

It also tells how the training process ended, which accelerate keeps to itself: with exit code 128 + n where
signal n ended it, as shells do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from redraft_trainer.priority import stand_back
from redraft_trainer.settings import TrainerSettings

SPEC_FILE, RESULT_FILE, LOG_FILE, LAUNCH_FILE = "spec.json", "result.json", "child.log", "accelerate.yaml"
BY_SIGNAL = 128


def main() -> None:
    """Run as a process, with a priority and the arguments of `accelerate launch`."""
    stand_back("low" if sys.argv.pop(1) == "low" else "idle")
    from accelerate.commands.launch import main as launch

    try:
        launch()
    except subprocess.CalledProcessError as error:
        # The training process has written its own failure already; a traceback of ours tells nothing more.
        sys.exit(error.returncode if error.returncode > 0 else BY_SIGNAL - error.returncode)


def launch_command(folder: Path, settings: TrainerSettings, device: str) -> list[str]:
    """Accelerate's launcher with a configuration of its own, so that a user's default one has no say."""
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
    module = ["--module", "redraft_trainer.child", "--spec", str(folder / SPEC_FILE)]
    return [sys.executable, "-m", "redraft_trainer.launch", settings.priority, *options, *module]


def _is_cpu(device: str) -> bool:
    if device != "auto":
        return device == "cpu"
    import torch

    return not torch.cuda.is_available()


def threads(settings: TrainerSettings) -> int:
    """CPU threads of the training process: as set, as OMP_NUM_THREADS says, or half of the cores."""
    wanted = settings.num_threads or int(os.environ.get("OMP_NUM_THREADS", "0") or 0)
    return wanted or max(1, len(os.sched_getaffinity(0)) // 2)


if __name__ == "__main__":
    main()
