"""A training worker whose broker looks for unacknowledged tasks every second, not every 100 s.

With a short `visibility_timeout_seconds` each round is delivered again while it runs.
"""

from __future__ import annotations

from redraft_ops.launch import train_context
from redraft_ops.logs import configure_logging
from redraft_ops.settings import load_settings
from redraft_ops.stack import open_stack
from redraft_queue.celery_app import build_app, run_worker
from redraft_queue.heartbeat import Heartbeat
from redraft_queue.stream import connect
from redraft_trainer.tasks import register

SWEEP = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}


def main() -> None:
    """As `redraft worker`."""
    settings = load_settings()
    configure_logging()
    with open_stack(settings) as stack:
        app = build_app(stack.redis_url, settings.queue)
        app.conf.broker_transport_options.update(SWEEP)
        register(app, train_context(stack))
        client = connect(stack.redis_url, settings.queue)
        run_worker(app, Heartbeat(client, "trainer", settings.queue.heartbeat_ttl_seconds))


if __name__ == "__main__":
    main()
