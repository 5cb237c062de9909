"""Celery's settings, without a server."""

from __future__ import annotations

import pytest
from celery.worker import state
from redraft_queue.celery_app import (
    TRAIN_ROUND,
    build_app,
    register_train_round,
    stopping,
)
from redraft_queue.settings import QueueSettings

SETTINGS = QueueSettings(visibility_timeout_seconds=7200)


def test_the_three_visibility_timeouts_agree() -> None:
    conf = build_app("redis://localhost:1", SETTINGS).conf
    assert conf.visibility_timeout == 7200
    assert conf.broker_transport_options["visibility_timeout"] == 7200
    assert conf.result_backend_transport_options["visibility_timeout"] == 7200


def test_tasks_are_acknowledged_late_and_taken_one_by_one_as_json() -> None:
    conf = build_app("redis://localhost:1", SETTINGS).conf
    assert (conf.task_acks_late, conf.worker_prefetch_multiplier, conf.task_track_started) == (True, 1, True)
    assert (conf.accept_content, conf.task_serializer, conf.result_serializer) == (["json"], "json", "json")
    assert (conf.timezone, conf.task_default_queue) == ("UTC", "redraft")


def test_the_task_has_its_explicit_name() -> None:
    app = build_app("redis://localhost:1", SETTINGS)
    task = register_train_round(app, lambda *_: {})
    assert task.name == TRAIN_ROUND == "redraft.train_round"
    assert TRAIN_ROUND in app.tasks
    assert TRAIN_ROUND not in build_app("redis://localhost:1", SETTINGS).tasks


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:pw@host:6380/3", "redis://:pw@host:6380/3"),
        ("unix:///run/valkey.sock", "redis+socket:///run/valkey.sock"),
        ("unix:///run/valkey.sock?db=2", "redis+socket:///run/valkey.sock?virtual_host=2"),
    ],
)
def test_one_url_serves_redis_and_celery(url: str, expected: str) -> None:
    assert build_app(url, SETTINGS).conf.broker_url == expected


def test_encrypted_connections_check_certificates() -> None:
    conf = build_app("rediss://host:6380", SETTINGS).conf
    assert conf.broker_use_ssl == conf.redis_backend_use_ssl
    assert conf.broker_use_ssl["ssl_cert_reqs"].name == "CERT_REQUIRED"


def test_an_exit_code_of_zero_means_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not stopping()
    monkeypatch.setattr(state, "should_stop", 0)
    assert stopping()
