"""`redraft worker`: the Celery worker that runs training rounds."""

from __future__ import annotations


def worker() -> None:
    """Run training rounds as they are asked for, one at a time, until SIGTERM."""
    from redraft_ops.logs import configure_logging
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    settings = load_settings()
    configure_logging()
    with open_stack(settings) as stack:
        stack.require_redis()
        from redraft_ops.launch import run_training_worker

        run_training_worker(stack)
