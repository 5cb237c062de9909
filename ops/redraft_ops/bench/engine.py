"""The serving engine in this process, without HTTP and capture: for what a server cannot be asked to do."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from redraft_models.loading import ModelPair
from redraft_serving.engine.interface import Emission, GenerationRequest, SamplingParams
from redraft_serving.engine.local import LocalEngine
from redraft_serving.policy.types import Setting
from redraft_serving.settings import ServingSettings

from redraft_ops.bench.answers import Answer, Ask, Block, Chunk

DOMAIN = "bench"


class EngineRunner:
    """One engine; each block says how many requests run at a time and how far they speculate."""

    def __init__(self, pair: ModelPair, settings: ServingSettings) -> None:
        self.engine = LocalEngine(pair, settings)
        self._asked = 0

    def run(self, asks: Sequence[Ask], clients: int, setting: Setting, domain: str | None = None) -> Block:
        """A closed loop of `clients` requests at a time."""
        ended: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        answers: list[Answer] = []
        started = time.perf_counter()
        for number, ask in enumerate(asks):
            if number >= clients:
                answers.append(ended.get())
            self._submit(ask, setting, domain or ask.domain or DOMAIN, ended.put)
        while len(answers) < len(asks):
            answers.append(ended.get())
        seconds = time.perf_counter() - started
        return Block(tuple(sorted(answers, key=lambda answer: answer.index)), seconds)

    def _submit(self, ask: Ask, setting: Setting, domain: str, told: Callable[[Answer], None]) -> None:
        self._asked += 1
        request = GenerationRequest(
            request_id=f"bench-{self._asked}",
            domain=domain,
            prompt_ids=ask.ids,
            max_tokens=ask.max_tokens,
            sampling=SamplingParams(temperature=ask.temperature, seed=ask.seed),
            ignore_eos=ask.ignore_eos,
            capture=False,
            num_speculative_tokens=setting,
        )
        self.engine.submit(request, _Receiver(ask, told))

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.stop()


class _Receiver:
    """Collects what one request is given, on the inference thread."""

    def __init__(self, ask: Ask, told: Callable[[Answer], None]) -> None:
        self.ask, self.told, self.due = ask, told, time.perf_counter()
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.chunks: list[Chunk] = []

    def __call__(self, emission: Emission) -> None:
        now = time.perf_counter() - self.due
        self.ids.extend(emission.token_ids)
        self.texts.append(emission.text)
        if emission.token_ids:
            self.chunks.append((now, len(emission.token_ids)))
        if emission.finish_reason is not None:
            self.told(self._answer(emission, now))

    def _answer(self, last: Emission, seconds: float) -> Answer:
        counts = last.statistics
        failed = last.finish_reason in ("error", "abort")
        return Answer(
            index=self.ask.index,
            ids=tuple(self.ids),
            text="".join(self.texts),
            chunks=tuple(self.chunks),
            seconds=seconds,
            rounds=counts.rounds if counts else 0,
            tested=counts.tested if counts else 0,
            accepted=counts.accepted if counts else 0,
            error=(last.error or str(last.finish_reason)) if failed else None,
        )
