"""Which servers, processes and lanes a comparison needs, from a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redraft_ops.bench.answers import Ask, Block
from redraft_ops.bench.arrivals import poisson
from redraft_ops.bench.interleave import Lane
from redraft_ops.bench.library_process import LibraryProcess
from redraft_ops.bench.load import Endpoint
from redraft_ops.bench.loops import closed_loop, open_loop
from redraft_ops.bench.plan import BenchPlan, Configuration
from redraft_ops.bench.worker import find_endpoint, serving_worker
from redraft_ops.errors import ServerUnreachable
from redraft_ops.settings import Settings
from redraft_ops.stack import tracking
from redraft_ops.valkey import embedded_valkey, free_port

SETTLE_SECONDS = 0.05
"""Pause before a block: threads of the process that ran before stop waiting for more work."""
PEER = "as served"
"""The dtype of somebody else's server is not ours to know."""


@dataclass
class Sides:
    """Everything that answers requests, until the `with` block of `cleanup` ends."""

    plan: BenchPlan
    workers: dict[str, Endpoint] = field(default_factory=dict)
    """By dtype."""
    libraries: dict[str, LibraryProcess] = field(default_factory=dict)
    """By dtype; a process starts with its first call."""
    peers: dict[str, Endpoint] = field(default_factory=dict)
    """By name."""
    redis_url: str = ""
    """Where the workers' samples go."""

    def lanes(self, clients: int, speculates: bool) -> tuple[list[Lane], list[str]]:
        """The lanes of one number of clients, and what was left out and why."""
        lanes: list[Lane] = []
        notes: list[str] = []
        for one in self.plan.compare:
            reason = _left_out(one, self.plan, clients, speculates)
            if reason is not None:
                notes.append(f"{one.name}, {clients} clients: left out, {reason}")
                continue
            dtypes = (PEER,) if one.kind == "peer" else self.plan.dtypes
            lanes += [Lane(one.name, dtype, self._answering(one, dtype, clients)) for dtype in dtypes]
        return lanes, notes

    def _answering(self, one: Configuration, dtype: str, clients: int) -> Any:
        def answer(asks: Sequence[Ask]) -> Block:
            time.sleep(SETTLE_SECONDS)
            if one.kind == "library":
                return self.libraries[dtype].run(one.name, asks, clients)
            endpoint = self.peers[one.name] if one.kind == "peer" else self.workers[dtype]
            return _loaded(endpoint, one, asks, clients, self.plan)

        return answer


def open_sides(settings: Settings, plan: BenchPlan, chat: bool, out: Path, cleanup: ExitStack) -> Sides:
    """Start workers, one per dtype, and find the peers. Raises ChildEnded, BenchFailed, ServerUnreachable."""
    sides = Sides(plan)
    for one in plan.compare:
        if one.kind == "peer":
            endpoint = find_endpoint(one.url, ours=False, chat=chat)
            if endpoint is None:
                raise ServerUnreachable(f"--peer {one.name} at {one.url} names no model; is it running?")
            sides.peers[one.name] = endpoint
    for dtype in plan.dtypes:
        models = settings.models.model_copy(update={"dtype": dtype})
        library = LibraryProcess(models, settings.cache_dir, plan.k, plan.threads)
        sides.libraries[dtype] = cleanup.enter_context(library)
    if any(one.kind == "engine" for one in plan.compare):
        data = Path(cleanup.enter_context(TemporaryDirectory(prefix="redraft-bench-")))
        url = cleanup.enter_context(embedded_valkey(data / "valkey"))
        sides.redis_url = url
        for dtype in plan.dtypes:
            own = worker_settings(settings, plan, dtype, data / dtype, url)
            worker = serving_worker(own, out / "logs" / dtype, plan.threads)
            sides.workers[dtype] = cleanup.enter_context(worker)
    return sides


def worker_settings(
    settings: Settings, plan: BenchPlan, dtype: str, folder: Path, redis_url: str
) -> Settings:
    """The caller's settings with a place of the worker's own: no sample of a bench reaches the caller's
    stream, while the drafts are those of the caller's registry.
    """
    from pydantic import SecretStr

    serving = {
        "host": "127.0.0.1",
        "port": free_port(),
        "max_num_seqs": max(plan.clients),
        "max_waiting": max(settings.serving.max_waiting, plan.requests),
        "num_speculative_tokens": "auto",
        "max_speculative_tokens": max(settings.serving.max_speculative_tokens, plan.most_speculative_tokens),
        "prefix_cache_mb": plan.prefix_cache_mb,
    }
    known = settings.mlflow_tracking_uri or (settings.data_dir / "mlflow" / "mlflow.db").exists()
    return settings.model_copy(
        update={
            "redis_url": SecretStr(redis_url),
            "mlflow_tracking_uri": tracking(settings)[0] if known else None,
            "data_dir": folder,
            "models": settings.models.model_copy(update={"dtype": dtype}),
            "serving": settings.serving.model_copy(update=serving),
        }
    )


def _loaded(
    endpoint: Endpoint, one: Configuration, asks: Sequence[Ask], clients: int, plan: BenchPlan
) -> Block:
    own = {"num_speculative_tokens": one.setting, "store": one.capture} if one.kind == "engine" else {}
    if plan.rate is None:
        return closed_loop(lambda ask, due: endpoint.send(ask, due, own), asks, clients)
    # Blocks differ in their arrivals, configurations do not.
    arrivals = poisson(plan.rate, len(asks), plan.seed + asks[0].index)
    return open_loop(lambda ask, due: endpoint.send(ask, due, own), asks, arrivals)


def _left_out(one: Configuration, plan: BenchPlan, clients: int, speculates: bool) -> str | None:
    if one.kind == "library" and plan.rate is not None:
        return "transformers has no open loop"
    if one.name == "assisted" and clients > 1:
        return "assisted generation answers one prompt at a time"
    if not speculates and (one.name == "assisted" or (isinstance(one.setting, int) and one.setting > 0)):
        return "there is no draft"
    return None
