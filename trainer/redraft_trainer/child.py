"""The training process of one round: `accelerate launch -m redraft_trainer.child --spec FOLDER/spec.json`.

1 load the pristine base draft   2 distil   3 write the candidate   4 measure champion and candidate as they
are served 5 result.json, written last

Several processes train together; the first one does the rest.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

NICENESS = 10
"""Serving on the same machine comes first."""


def main() -> None:
    """Run as a process; exit code 1 with an `error` in result.json where the round fails."""
    parser = argparse.ArgumentParser(description="The training process of one round; started by the trainer.")
    parser.add_argument("--spec", type=Path, required=True)
    folder: Path = parser.parse_args().spec.parent
    threading.Thread(target=_end_with_parent, daemon=True, name="parent-watch").start()
    os.nice(NICENESS)
    spec = json.loads((folder / "spec.json").read_text())

    try:
        from redraft_trainer.training import train

        result = train(folder, spec, tell)
    except Exception as error:  # the worker has to learn of every failure, whatever it is
        logging.exception("the training failed")
        write_result(folder, _failure(error))
        sys.exit(1)
    if result is not None:
        write_result(folder, result)


def _failure(error: Exception) -> dict[str, Any]:
    """The failure in one sentence; errors of ours are sentences already."""
    ours = type(error).__module__.startswith("redraft_")
    return {"error": str(error) if ours else f"{type(error).__name__}: {error}", "kind": type(error).__name__}


def tell(event: dict[str, Any]) -> None:
    """One progress event on standard output."""
    from redraft_trainer.process import EVENT_PREFIX

    sys.stdout.write(f"{EVENT_PREFIX}{json.dumps(event)}\n")
    sys.stdout.flush()


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """The marker that the round is whole."""
    unfinished = folder / f"result.json.{os.getpid()}"
    unfinished.write_text(json.dumps(result))
    os.replace(unfinished, folder / "result.json")


def _end_with_parent() -> None:
    """Standard input is a pipe that nobody writes to; it ends when the worker does, however it dies."""
    while os.read(0, 1024):
        pass
    os._exit(3)


if __name__ == "__main__":
    main()
