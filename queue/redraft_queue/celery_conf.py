"""Celery's settings: how a training round is delivered, and how long a connection may take."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

from redraft_queue import keys
from redraft_queue.settings import QueueSettings

TRAIN_ROUND = "redraft.train_round"
QUEUE = "redraft"
_RESULT_SECONDS = 7 * 24 * 3600
_SOFT_SHUTDOWN_SECONDS = 10.0


def configuration(redis_url: str, settings: QueueSettings) -> dict[str, Any]:
    """Every Celery setting that redraft makes."""
    url = _kombu_url(redis_url)
    return {
        "broker_url": url,
        "result_backend": url,
        **_delivery(settings),
        **_connections(settings),
        **_habits(),
        **_encryption(redis_url),
    }


def _delivery(settings: QueueSettings) -> dict[str, Any]:
    # The three visibility timeouts must agree (Celery documentation, "Using Redis", Caveats).
    visibility = {"visibility_timeout": settings.visibility_timeout_seconds}
    return {
        "task_default_queue": QUEUE,
        "task_routes": {TRAIN_ROUND: {"queue": QUEUE}},
        "task_acks_late": True,
        "task_track_started": True,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_soft_shutdown_timeout": _SOFT_SHUTDOWN_SECONDS,
        **visibility,
        "broker_transport_options": {**visibility, **_transport(settings)},
        "result_backend_transport_options": {
            **visibility,
            "global_keyprefix": keys.CELERY_PREFIX,
            "retry_policy": {
                "max_retries": 1,
                "interval_start": 0,
                "interval_step": 0.1,
                "interval_max": 0.1,
            },
        },
    }


def _transport(settings: QueueSettings) -> dict[str, Any]:
    return {
        "global_keyprefix": keys.CELERY_PREFIX,
        "socket_timeout": settings.socket_timeout_seconds,
        "socket_connect_timeout": settings.socket_timeout_seconds,
        "socket_keepalive": True,
    }


def _connections(settings: QueueSettings) -> dict[str, Any]:
    return {
        "broker_connection_timeout": settings.socket_timeout_seconds,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "redis_socket_timeout": settings.socket_timeout_seconds,
        "redis_socket_connect_timeout": settings.socket_timeout_seconds,
        "redis_socket_keepalive": True,
        "result_expires": _RESULT_SECONDS,
    }


def _habits() -> dict[str, Any]:
    return {
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "timezone": "UTC",
        "enable_utc": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _encryption(redis_url: str) -> dict[str, Any]:
    if urlsplit(redis_url).scheme != "rediss":
        return {}
    verified = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return {"broker_use_ssl": verified, "redis_backend_use_ssl": verified}


def _kombu_url(redis_url: str) -> str:
    """kombu has its own name for what redis-py calls unix:///path?db=0."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = parts.query.replace("db=", "virtual_host=")
    return f"redis+socket://{parts.path}" + (f"?{query}" if query else "")
