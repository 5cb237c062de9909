"""`redraft demo`: the whole loop on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from redraft_ops.options import AsJson
from redraft_ops.output import emit_json, note


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="On a toy pair, in under a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the report, logs and data; emptied first.")] = Path(
        "redraft-demo"
    ),
    drift: Annotated[
        bool, typer.Option("--drift", help="Traffic that changes half-way, 10 to 20 minutes.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show a draft getting better from its own traffic and being swapped in while it serves."""
    if drift:
        _drift(out.expanduser().absolute(), json)
        return
    from redraft_ops.demo.plan import full_plan, quick_plan
    from redraft_ops.demo.report import HEADER, rows, write_report
    from redraft_ops.demo.run import run_demo
    from redraft_ops.output import emit_table
    from redraft_ops.progress import Phases

    plan = quick_plan() if quick else full_plan()
    folder = out.expanduser().absolute()
    with Phases() as phases:
        result = run_demo(plan, folder, phases)
    command = mlflow_command(folder)
    report = write_report(result, plan, folder, command)
    if json:
        emit_json(result.to_json())
    else:
        emit_table("redraft demo", HEADER, rows(result))
    note(f"report: {report}\nMLflow: {command}")
    if result.failures or not result.greedy_equal:
        reason = f"{len(result.failures)} requests failed" if result.failures else "greedy text differs"
        note(f"redraft: the demo found a fault: {reason}; read {folder / 'logs'}")
        raise typer.Exit(1)


def _drift(folder: Path, json: bool) -> None:
    from redraft_ops.drift.plan import DriftPlan
    from redraft_ops.drift.report import rows, write_report
    from redraft_ops.drift.run import run_drift
    from redraft_ops.output import emit_table
    from redraft_ops.progress import Phases

    plan = DriftPlan()
    with Phases() as phases:
        result = run_drift(plan, folder, phases)
    picture = write_report(result, plan, folder)
    if json:
        emit_json(result.to_json(plan.recovered_share))
    else:
        emit_table("redraft demo --drift", ("", ""), rows(result, plan))
    note(f"picture: {picture}\nMLflow: {mlflow_command(folder)}")
    if result.failures or result.recovered_after(plan.recovered_share) is None:
        reason = f"{len(result.failures)} requests failed" if result.failures else "acceptance is not back"
        note(f"redraft: {reason}; read {folder / 'logs'}")
        raise typer.Exit(1)


def mlflow_command(folder: Path) -> str:
    """The command that opens MLflow's UI on the demo's data."""
    data = folder / "data" / "mlflow"
    # `make demo` activates no environment, so a bare `mlflow` would not be found.
    beside = Path(sys.executable).with_name("mlflow")
    program = str(beside) if beside.is_file() else "mlflow"
    store, artifacts = f"sqlite:///{data / 'mlflow.db'}", str(data / "artifacts")
    options = ["--backend-store-uri", store, "--artifacts-destination", artifacts, "--port", "5000"]
    return shlex.join([program, "server", *options])
