"""Ways to answer a prompt greedily, one at a time: the engine, and transformers' own on the same pair."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from redraft_models.loading import ModelPair
from redraft_serving.engine.interface import Emission, GenerationRequest, SamplingParams
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings
from transformers import GenerationConfig


@dataclass(frozen=True)
class Timed:
    """One answer: its ids, an end token included, and the seconds from asking to its end."""

    ids: tuple[int, ...]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Prompt reading included."""
        return len(self.ids) / self.seconds


Runner = Callable[[Sequence[int]], Timed]


class EngineRunner:
    """The serving engine with one slot, as a worker runs it but without HTTP or capture."""

    def __init__(self, pair: ModelPair, k: int, max_tokens: int) -> None:
        self.pair = pair if k else replace(pair, draft=None)
        self.max_tokens, self.asked = max_tokens, 0
        self.engine = LocalEngine(self.pair, ServingSettings(max_num_seqs=1, num_speculative_tokens=k))
        self.engine.start()

    def __call__(self, prompt: Sequence[int]) -> Timed:
        """Answer one prompt."""
        self.asked += 1
        ids: list[int] = []
        ended = threading.Event()

        def receive(emission: Emission) -> None:
            ids.extend(emission.token_ids)
            if emission.finish_reason:
                ended.set()

        law = SamplingParams(temperature=0.0)
        request = GenerationRequest(str(self.asked), "bench", tuple(prompt), self.max_tokens, law)
        started = time.perf_counter()
        self.engine.submit(request, receive)
        ended.wait()
        return Timed(tuple(ids), time.perf_counter() - started)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / tested of all answers; None without a draft."""
        counts = self.engine.statistics()
        return counts.accepted / counts.tested if counts.tested else None

    def close(self) -> None:
        """End the engine's thread."""
        self.engine.stop()


def generate_runner(pair: ModelPair, max_tokens: int, k: int) -> Runner:
    """transformers' `generate`; with k > 0 its assisted generation, K constant and no confidence cut."""
    target: Any = pair.target.module
    options: dict[str, Any] = {}
    if k:
        assert pair.draft is not None
        assistant = pair.draft.module
        assistant.generation_config = GenerationConfig(
            num_assistant_tokens=k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
            do_sample=False,
        )
        options["assistant_model"] = assistant
    config = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)

    def run(prompt: Sequence[int]) -> Timed:
        ids = torch.tensor([list(prompt)], device=pair.device)
        started = time.perf_counter()
        with torch.inference_mode():
            # The mask is explicit: inferred from the pad id it would hide real tokens of a prompt.
            output = target.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **options
            )
        return Timed(tuple(output[0, len(prompt) :].tolist()), time.perf_counter() - started)

    return run
