"""The long-running parts, wired to one stack. The heavy imports are here, behind every command's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from redraft_ops.stack import Stack


def run_serving(stack: Stack) -> None:
    """Serve until SIGTERM or Ctrl-C. Redis and registry may come and go."""
    from redraft_serving.worker import WorkerConfig, run

    settings = stack.settings
    run(
        WorkerConfig(
            models=settings.models,
            serving=settings.serving,
            queue=settings.queue,
            redis_url=stack.redis_url,
            tracking_uri=stack.tracking_uri,
            artifact_root=stack.artifact_root,
            cache_dir=settings.cache_dir,
            default_domain=settings.default_domain,
            domains=tuple(settings.domains),
            shared_drafts=settings.shared_drafts,
        )
    )


def run_training_worker(stack: Stack) -> None:
    """Run training rounds as they come, until SIGTERM."""
    from redraft_queue.celery_app import build_app, run_worker
    from redraft_queue.heartbeat import Heartbeat
    from redraft_queue.stream import connect
    from redraft_trainer.tasks import register

    settings = stack.settings
    app = build_app(stack.redis_url, settings.queue)
    register(app, train_context(stack))
    client = connect(stack.redis_url, settings.queue)
    run_worker(app, Heartbeat(client, "trainer", settings.queue.heartbeat_ttl_seconds))


def run_clock(stack: Stack) -> None:
    """Ask for rounds of the settings' domains, and of those with samples, until SIGTERM."""
    from redraft_queue.celery_app import RoundClock, build_app, run_beat
    from redraft_queue.heartbeat import Heartbeat
    from redraft_queue.stream import connect

    settings = stack.settings
    app = build_app(stack.redis_url, settings.queue)
    client = connect(stack.redis_url, settings.queue)
    heartbeat = Heartbeat(client, "beat", settings.queue.heartbeat_ttl_seconds)
    run_beat(
        app, RoundClock(app, client, settings.queue, settings.domains, settings.shared_drafts), heartbeat
    )


def run_round_here(
    stack: Stack, domain: str, force: bool, progress: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """One training round in this process; its training still runs in a child."""
    from redraft_trainer.rounds import run_round

    result = run_round(train_context(stack), domain, str(uuid.uuid4()), force=force, progress=progress)
    return dict(result.to_dict())


def train_context(stack: Stack) -> Any:
    """What a round needs to know, from the settings and the stack."""
    from redraft_queue.stream import connect
    from redraft_trainer.context import TrainContext

    settings = stack.settings
    return TrainContext(
        models=settings.models,
        trainer=settings.trainer,
        gate=settings.gate,
        queue=settings.queue,
        data_dir=settings.data_dir,
        cache_dir=settings.cache_dir,
        registry=stack.registry(),
        client=connect(stack.redis_url, settings.queue),
        canary=settings.serving.canary.share > 0,
        canary_seconds=settings.serving.canary.max_seconds,
        shared_drafts=settings.shared_drafts,
    )
