"""The whole deployment on one machine, until a signal."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redraft_ops.errors import EmbeddedValkeyError, UsageError
from redraft_ops.output import note
from redraft_ops.settings import Settings
from redraft_ops.up.plan import make_plan
from redraft_ops.up.supervisor import Supervisor
from redraft_ops.valkey import owned

MEGABYTE = 2**20


def run_deployment(settings: Settings, left_out: frozenset[str] = frozenset()) -> None:
    """Run every part until SIGTERM or Ctrl-C; a second Ctrl-C hurries the end.

    Raises UsageError where another `redraft up` or another user of the embedded Valkey has the data
    directory, or where a part refuses its settings.
    """
    with ExitStack() as held:
        held.enter_context(_alone(settings.data_dir))
        plan = make_plan(settings, left_out)
        if plan.valkey_port is not None:
            try:
                held.enter_context(owned(plan.valkey_folder))
            except EmbeddedValkeyError as error:
                raise UsageError(str(error)) from error
        for place in plan.places():
            note(place)
        supervisor = Supervisor(
            plan.services(), plan.logs, round(settings.up.log_max_mb * MEGABYTE), settings.up.log_files_kept
        )
        supervisor.run()


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """One supervisor per data directory. Raises UsageError."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another `redraft up` runs on {data_dir}; stop it, or set data_dir to another folder"
            ) from None
        yield
