"""The training process of one round, started by `redraft_trainer.launch` with `--spec FOLDER/spec.json`.

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
from pathlib import Path
from typing import Any

from redraft_trainer.failures import told
from redraft_trainer.orders import Orders, Teller, peak_mb


def main() -> None:
    """Run as a process; exit code 1 with an `error` in result.json where the round fails."""
    parser = argparse.ArgumentParser(description="The training process of one round; started by the trainer.")
    parser.add_argument("--spec", type=Path, required=True)
    folder: Path = parser.parse_args().spec.parent
    orders = Orders()
    orders.follow()
    teller = Teller(write_event, orders)

    try:
        # A broken file is a failure of the round like any other.
        spec = json.loads((folder / "spec.json").read_text())
        from redraft_trainer.training import train

        result = train(folder, spec, teller)
        if result is not None:
            training = result["training_seconds"] - teller.paused["train"]
            write_result(folder, {**result, **teller.facts(), "training_seconds": round(training, 3)})
    except Exception as error:  # the worker has to learn of every failure, whatever it is
        logging.exception("the training failed")
        kind, sentence = told(error, peak_mb())
        write_result(folder, {"error": sentence, "kind": kind})
        sys.exit(1)


def write_event(event: dict[str, Any]) -> None:
    """One event as a line on standard output."""
    from redraft_trainer.process import EVENT_PREFIX

    sys.stdout.write(f"{EVENT_PREFIX}{json.dumps(event)}\n")
    sys.stdout.flush()


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """The marker that the round is whole."""
    unfinished = folder / f"result.json.{os.getpid()}"
    unfinished.write_text(json.dumps(result))
    os.replace(unfinished, folder / "result.json")


if __name__ == "__main__":
    main()
