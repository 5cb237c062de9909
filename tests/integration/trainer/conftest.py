"""A bench for whole training rounds on the learn pair: real Valkey, real MLflow on sqlite, real processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redraft_models.registry import Registry
from redraft_models.settings import ModelSettings
from redraft_models.toy_laws import learn_rows
from redraft_queue.records import Sample, ids_to_bytes
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect
from redraft_trainer.context import RoundResult, TrainContext
from redraft_trainer.identity import Identity, identify
from redraft_trainer.rounds import run_round
from redraft_trainer.settings import GateSettings, TrainerSettings

DOMAIN = "default"
WORDS = range(3, 67)
ROWS = learn_rows().numpy()
QUICK = TrainerSettings(
    learning_rate=3e-3,
    max_steps=30,
    rank=16,
    lora_alpha=32,
    eval_every=10,
    num_threads=1,
    # Beside a busy test run nothing would be left for the idle class.
    priority="low",
)
GATE = GateSettings(min_heldout_requests=10, min_heldout_tokens=100)


@dataclass(frozen=True)
class Bench:
    """A context and what feeds it."""

    context: TrainContext
    stream: SampleStream
    identity: Identity

    def traffic(self, count: int, seed: int, **changes: Any) -> list[str]:
        """Answers of the target to `count` prompts, in the stream."""
        found = [replace(one, **changes) for one in answers(count, seed, self.identity)]
        return self.stream.append(found)

    def run(self, round_id: str, **settings: Any) -> RoundResult:
        """A round, with other trainer settings where given."""
        trainer = self.context.trainer.model_copy(update=settings)
        return run_round(replace(self.context, trainer=trainer), DOMAIN, round_id)


def answers(count: int, seed: int, identity: Identity, rows: np.ndarray = ROWS) -> list[Sample]:
    """Drawn from a table, the learn pair's, with the law logged as serving logs it. Another table with the
    same seed answers the same prompts.
    """
    generator = np.random.default_rng(seed)
    order = np.argsort(-rows, axis=1, kind="stable")[:, :32]
    law = np.take_along_axis(rows, order, axis=1)
    with np.errstate(divide="ignore"):
        logs = np.log(law).astype("<f2")
    found = []
    for i in range(count):
        states = [int(generator.choice(WORDS)) for _ in range(4)]
        for _ in range(20):
            states.append(int(generator.choice(len(rows), p=rows[states[-1]])))
        seen = states[3:-1]
        found.append(
            Sample(
                request_id=f"s{seed}-{i}",
                domain=DOMAIN,
                created_ms=0,
                target_fingerprint=identity.target,
                tokenizer_fingerprint=identity.tokenizer,
                prompt_ids=tuple(states[:4]),
                output_ids=tuple(states[4:]),
                topk_ids=ids_to_bytes(order[seen].flatten().tolist()),
                topk_logprobs=logs[seen].tobytes(),
                tail_mass=np.zeros(len(seen), "<f2").tobytes(),
                top_k_logged=32,
            )
        )
    return found


@pytest.fixture
def bench(
    redis_url: str, tracking_uri: str, tmp_path: Path, toy_pair: Callable[[str], tuple[Path, Path]]
) -> Iterator[Bench]:
    target, draft = toy_pair("learn")
    queue = QueueSettings(min_new_tokens=500, lock_ttl_seconds=5.0)
    client = connect(redis_url, queue)
    models = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=256)
    context = TrainContext(
        models=models,
        trainer=QUICK,
        gate=GATE,
        queue=queue,
        data_dir=tmp_path / "data",
        cache_dir=tmp_path / "cache",
        registry=Registry(tracking_uri),
        client=client,
    )
    yield Bench(context, SampleStream(client, queue), identify(models, context.cache_dir))
    client.close()


def runs(bench: Bench) -> list[Any]:
    """MLflow's runs of the domain, newest first."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=bench.context.registry.tracking_uri)
    experiment = client.get_experiment_by_name(f"redraft/{DOMAIN}")
    return list(client.search_runs([experiment.experiment_id]))


def spec(bench: Bench, redis_url: str) -> str:
    """The bench's context for a process of its own, as JSON."""
    context = bench.context
    parts = {part: getattr(context, part).model_dump() for part in ("queue", "models", "trainer", "gate")}
    places = {"data_dir": str(context.data_dir), "cache_dir": str(context.cache_dir)}
    return json.dumps({**parts, **places, "uri": context.registry.tracking_uri, "redis": redis_url})


def wait_until(done: Callable[[], bool], problem: str, seconds: float = 30.0) -> None:
    """Poll until `done`, or fail with `problem`."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, problem
        time.sleep(0.1)


def training_in(folder: Path) -> list[int]:
    """Training processes, without their launchers, whose command line names a file in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            # The launcher has the child's name among its arguments too.
            ours = b"redraft_trainer.child" in command and b"--module" not in command
            if ours and any(str(folder).encode() in word for word in command):
                found.append(int(entry.name))
    return found
