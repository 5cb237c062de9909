"""Serving workers without HTTP: engine, trials and watcher of each, on one real Redis and one real MLflow."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from redraft_models.adapter import adaptable_linears, write_adapter
from redraft_models.loading import ModelPair
from redraft_models.registry import Registry, VersionInfo
from redraft_queue.events import publish_champion
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from redraft_queue.trials import TrialStore
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import Emission, GenerationRequest, SamplingParams
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings
from redraft_serving.swap import SwapWatcher

QUEUE = QueueSettings(socket_timeout_seconds=0.5)
WAIT_SECONDS = 60.0
BAD, RUIN = 0.15, 1.0
"""Spreads of random adapters: one that is accepted less than the base draft, and one that hardly is."""
# Times on a busy test machine say little: what decides here is acceptance.
QUICK = CanarySettings(
    share=0.4,
    watch_share=0.4,
    min_requests=30,
    min_tested_tokens=300,
    max_acceptance_loss=0.1,
    max_slowdown=0.9,
    error_rate=0.001,
    watch_max_slowdown=0.9,
    watch_error_rate=0.001,
    max_requests=100_000,
)


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@dataclass
class Member:
    """One worker."""

    engine: LocalEngine
    trials: Trials
    watcher: SwapWatcher
    served: int = 0
    failed: list[str] = field(default_factory=list)

    def ask(self, domain: str = "default", requests: int = 8) -> None:
        """So many requests at once, each on its arm, and what came of them told to the trials."""
        done = [threading.Event() for _ in range(requests)]
        for event in done:
            self.served += 1
            self._submit(domain, f"{id(self)}-{self.served}", event)
        assert all(event.wait(WAIT_SECONDS) for event in done)

    def _submit(self, domain: str, name: str, done: threading.Event) -> None:
        arm = self.trials.arm_of(domain, name)
        prompt = tuple(3 + (self.served * k) % 60 for k in (1, 7, 11))
        sampling = SamplingParams(temperature=1.0, seed=self.served)
        request = GenerationRequest(name, domain, prompt, 16, sampling, ignore_eos=True, arm=arm)

        def receive(emission: Emission) -> None:
            if emission.finish_reason is None:
                return
            if emission.finish_reason != "length" or emission.statistics is None:
                self.failed.append(f"{name}: {emission.finish_reason} {emission.error}")
            else:
                self.trials.finished(domain, arm, [emission.statistics])
            done.set()

        self.engine.submit(request, receive)

    def version(self, domain: str = "default") -> int | str:
        """What a request of the domain's champion is served by now."""
        return self.watcher.serving.get(domain, "base")


def make_member(
    pair: ModelPair,
    registry: Registry,
    redis_url: str | None,
    folder: Path,
    cleanup: ExitStack,
    settings: CanarySettings = QUICK,
    domains: Iterable[str] = ("default",),
    **more: Any,
) -> Member:
    """A worker that runs; `cleanup` stops it."""
    engine = LocalEngine(pair, ServingSettings(num_speculative_tokens=3, max_num_seqs=8, prefix_cache_mb=0))
    engine.start()
    cleanup.callback(engine.stop)
    client = connect(redis_url, QUEUE) if redis_url else None
    trials = Trials(settings, TrialStore(client) if client is not None else None)
    assert pair.draft is not None
    names = list(domains)
    watcher = SwapWatcher(
        registry,
        engine,
        pair.draft.module,
        pair.draft.fingerprint,
        lambda: names,
        0.2,
        folder / "adapters",
        pair.vocab_size,
        trials=trials,
        announce=None if client is None else lambda event: publish_champion(client, event),
        **more,
    )
    watcher.start(10)
    cleanup.callback(watcher.stop)
    return Member(engine, trials, watcher)


def until(condition: Callable[[], bool], members: Iterable[Member], domain: str = "default") -> None:
    """Traffic on all members until something has happened; no request may fail meanwhile."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        for member in members:
            member.ask(domain)
            assert member.failed == []


def register(
    registry: Registry,
    pair: ModelPair,
    folder: Path,
    spread: float,
    parent: int | str = "base",
    domain: str = "default",
    whole: bool = True,
) -> int:
    """A pending version that the gate has approved. `spread` 0 is the base draft, 1 a ruin."""
    assert pair.draft is not None
    number = len(registry.versions(domain)) + 1
    generator = torch.Generator().manual_seed(number)
    linears = adaptable_linears(pair.draft.module)
    tensors = {}
    for path, linear in linears.items():
        tensors[f"{path}.lora_A.weight"] = torch.randn((4, linear.in_features), generator=generator)
        tensors[f"{path}.lora_B.weight"] = spread * torch.randn((linear.out_features, 4), generator=generator)
    place = folder / f"{domain}-{number}"
    provenance = {"base_draft_fingerprint": pair.draft.fingerprint}
    sha = write_adapter(
        place, tensors, r=4, lora_alpha=4.0, target_modules=sorted(linears), provenance=provenance
    )
    if not whole:
        (place / "adapter" / "adapter_model.safetensors").write_bytes(b"no weights")
    run_id = registry.start_run(domain, f"round {number}", {}, {"round_id": f"{domain}-{number}"})
    registry.log_artifacts(run_id, place, "version")
    shutil.rmtree(place)
    tags = {
        "sha256": sha,
        "validation_status": "pending",
        "decision": "promoted",
        "decision_reason": "The gate says so.",
        "parent_version": parent,
    }
    version = registry.register(domain, run_id, tags)
    registry.end_run(run_id, "FINISHED")
    return version


def tag(registry: Registry, version: int, name: str, domain: str = "default") -> str | None:
    info: VersionInfo = registry.version(domain, version)
    return info.tags.get(name)


def arms(member: Member, domain: str = "default") -> set[Any]:
    """Arms of the domain that the engine has a draft for."""
    return {draft.arm for draft in member.engine.statistics().drafts if draft.domain == domain}
