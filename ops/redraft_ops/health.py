"""`python -m redraft_ops.health ROLE`: exit 0 if this host's process of that role gave a sign of life.

For container health checks: a solo Celery worker answers no remote control while it trains.
"""

from __future__ import annotations

import socket
import sys


def alive(role: str) -> bool:
    """True if a heartbeat of `role` from this host has not expired. Raises StreamUnavailable without
    Redis.
    """
    from redraft_queue.heartbeat import heartbeats
    from redraft_queue.stream import connect

    from redraft_ops.settings import load_settings

    settings = load_settings()
    if settings.redis_url is None:
        return False
    client = connect(settings.redis_url.get_secret_value(), settings.queue)
    return any(sign.role == role and sign.host == socket.gethostname() for sign in heartbeats(client))


if __name__ == "__main__":
    sys.exit(0 if alive(sys.argv[1]) else 1)
