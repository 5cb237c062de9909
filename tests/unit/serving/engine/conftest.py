"""Toy pairs behind a real engine, and a client that waits for answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redraft_models.loading import ModelPair, load_pair
from redraft_models.settings import ModelSettings
from redraft_models.toy import write_toy_pair
from redraft_queue.records import Sample
from redraft_serving.engine.interface import (
    Emission,
    GenerationRequest,
    RequestStatistics,
    SamplingParams,
)
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings

MakePair = Callable[..., ModelPair]


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> MakePair:
    """`make_pair(kind, draft=True, max_model_len=..., **options of write_toy_pair)`, loaded and checked."""
    written: dict[str, tuple[Path, Path]] = {}

    def make(kind: str, *, draft: bool = True, max_model_len: int = 4096, **options: Any) -> ModelPair:
        key = repr((kind, sorted(options.items())))
        if key not in written:
            written[key] = write_toy_pair(tmp_path_factory.mktemp(kind), kind, **options)  # type: ignore[arg-type]
        target, draft_folder = written[key]
        settings = ModelSettings(
            target=str(target),
            draft=str(draft_folder) if draft else "none",
            device="cpu",
            max_model_len=max_model_len,
        )
        return load_pair(settings, target.parent)

    return make


@dataclass
class Answer:
    """What a client received for one choice."""

    emissions: list[Emission] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, emission: Emission) -> None:
        self.emissions.append(emission)
        if emission.finish_reason:
            self.done.set()

    def wait(self, seconds: float = 60) -> Answer:
        """Until the choice has ended."""
        assert self.done.wait(seconds), "no end within the time"
        return self

    @property
    def text(self) -> str:
        return "".join(emission.text for emission in self.emissions)

    @property
    def ids(self) -> list[int]:
        return [token for emission in self.emissions for token in emission.token_ids]

    @property
    def last(self) -> Emission:
        return self.emissions[-1]

    @property
    def statistics(self) -> RequestStatistics:
        assert self.last.statistics is not None
        return self.last.statistics


@dataclass
class Served:
    """A running engine."""

    engine: LocalEngine
    pair: ModelPair
    samples: list[Sample]
    asked: int = 0

    def ask(self, prompt: str | list[int], max_tokens: int = 16, **options: Any) -> Answer:
        """Submit one choice; options are those of the request and of its sampling."""
        own = {
            name: options.pop(name) for name in list(options) if name in SamplingParams.__dataclass_fields__
        }
        own.setdefault("temperature", 0.0)
        ids = prompt if isinstance(prompt, list) else self.pair.tokenizer(prompt).input_ids
        self.asked += 1
        options.setdefault("request_id", f"request-{self.asked}")
        options.setdefault("domain", "default")
        request = GenerationRequest(
            prompt_ids=tuple(ids), max_tokens=max_tokens, sampling=SamplingParams(**own), **options
        )
        answer = Answer()
        self.engine.submit(request, answer)
        return answer


Serve = Callable[..., Served]


@pytest.fixture
def run_engine() -> Iterator[Serve]:
    """`run_engine(pair, **serving settings)`: a started engine, stopped at the end of the test."""
    running: list[LocalEngine] = []

    def start(pair: ModelPair, **settings: Any) -> Served:
        samples: list[Sample] = []
        engine = LocalEngine(pair, ServingSettings(**settings), on_sample=samples.append)
        engine.start()
        running.append(engine)
        return Served(engine, pair, samples)

    yield start
    for engine in running:
        engine.stop()
