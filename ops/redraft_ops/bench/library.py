"""transformers' own ways of decoding, on the same pair: plain, assisted, continuous batching.

Runs in a process of its own (`library_process.py`); the serving code takes no part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from redraft_models.loading import ModelPair
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from redraft_ops.bench.answers import Answer, Ask, Block, Chunk

PAGE_TOKENS = 256
"""Tokens of one block of the continuous batching's cache (transformers' default)."""
BATCH_TOKENS = 2048
"""Most tokens of one step there: several prompts are read at once."""
NO_END = 1_000_000_000
"""An end token that no vocabulary holds. None would bring the model's own ends back."""


class Library:
    """Answers blocks of requests with one loaded pair. Wrap calls in `torch.inference_mode()`."""

    def __init__(self, pair: ModelPair, k: int) -> None:
        self.pair, self.k = pair, k
        self.target: Any = pair.target.module
        self.ends = sorted(pair.eos_token_ids)
        self._managers: dict[tuple[int, bool, int], Any] = {}

    def generate(self, asks: Sequence[Ask], clients: int) -> Block:
        """Static batches of `clients` prompts, padded on the left, each until its last row has ended."""
        return _in_turn(asks, clients, self._batch)

    def assisted(self, asks: Sequence[Ask], clients: int) -> Block:
        """Assisted generation, one prompt at a time (it has no batches): K constant, no confidence cut."""
        return _in_turn(asks, 1, self._assisted)

    def continuous_batching(self, asks: Sequence[Ask], clients: int) -> Block:
        """A closed loop of `clients` requests over one manager, which is kept between blocks."""
        manager = self._manager(self._config(asks), asks, clients)
        manager.switch_to_cb_friendly_attn(self.target)
        manager.start()
        started = time.perf_counter()
        answers = list(self._in_flight(manager, asks, clients))
        seconds = time.perf_counter() - started
        manager.stop(keep_for_next_session=True)
        # The model remembers the last manager, and would hand it out for any other number of clients.
        del self.target._cached_continuous_batching_manager
        return Block(tuple(sorted(answers, key=lambda answer: answer.index)), seconds)

    def _in_flight(self, manager: Any, asks: Sequence[Ask], clients: int) -> Iterator[Answer]:
        """Answers as they come; each makes place for the next request, as in a closed loop."""
        due: dict[str, float] = {}

        def add(number: int) -> None:
            due[str(number)] = time.perf_counter()
            ask = asks[number]
            manager.add_request(
                list(ask.ids), str(number), max_new_tokens=ask.max_tokens, record_timestamps=True
            )

        for number in range(min(clients, len(asks))):
            add(number)
        for done, result in enumerate(_results(manager, len(asks))):
            if clients + done < len(asks):
                add(clients + done)
            yield self._continuous(asks[int(result.request_id)], result, due[result.request_id])

    def gap(self, prefix: Sequence[int], one: int, other: int) -> float:
        """Difference of two tokens' logits after a prefix, as the library computes them."""
        return logit_gap(self.target, prefix, one, other)

    def _config(self, asks: Sequence[Ask]) -> GenerationConfig:
        temperature = asks[0].temperature
        torch.manual_seed(asks[0].seed)
        law = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        return GenerationConfig(
            do_sample=temperature > 0,
            max_new_tokens=max(ask.max_tokens for ask in asks),
            pad_token_id=0,
            eos_token_id=[NO_END] if asks[0].ignore_eos or not self.ends else self.ends,
            **law,
        )

    def _batch(self, asks: Sequence[Ask], started: float, **options: Any) -> list[Answer]:
        width = max(len(ask.ids) for ask in asks)
        padded = [[0] * (width - len(ask.ids)) + list(ask.ids) for ask in asks]
        ids = torch.tensor(padded, device=self.pair.device)
        kept = [[0] * (width - len(ask.ids)) + [1] * len(ask.ids) for ask in asks]
        clock = _Clock(started)
        # The mask is explicit: inferred from the pad id it would hide real tokens of a prompt.
        output = self.target.generate(
            ids,
            attention_mask=torch.tensor(kept, device=self.pair.device),
            generation_config=self._config(asks),
            streamer=clock,
            **options,
        )
        rows = output[:, width:].tolist()
        return [self._answer(ask, row, clock.chunks) for ask, row in zip(asks, rows, strict=True)]

    def _assisted(self, asks: Sequence[Ask], started: float) -> list[Answer]:
        if self.pair.draft is None:
            raise ValueError("assisted generation needs a draft")
        assistant = self.pair.draft.module
        assistant.generation_config = GenerationConfig(
            num_assistant_tokens=self.k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
            do_sample=asks[0].temperature > 0,
        )
        return [_counted(one, self.k) for one in self._batch(asks, started, assistant_model=assistant)]

    def _answer(self, ask: Ask, row: Sequence[int], chunks: Sequence[Chunk]) -> Answer:
        """A row up to its own end: what follows is padding."""
        length = self._length(ask, row)
        own: list[Chunk] = []
        for at, tokens in chunks:
            left = length - sum(count for _, count in own)
            if left > 0:
                own.append((at, min(tokens, left)))
        return Answer(ask.index, tuple(row[:length]), None, tuple(own), own[-1][0] if own else 0.0)

    def _length(self, ask: Ask, row: Sequence[int]) -> int:
        ends = [] if ask.ignore_eos else [n + 1 for n, token in enumerate(row) if token in self.ends]
        return min([*ends, ask.max_tokens, len(row)])

    def _manager(self, config: GenerationConfig, asks: Sequence[Ask], clients: int) -> Any:
        """Kept between blocks, as a server would keep it; without `num_blocks` it would take most of the
        memory.
        """
        longest = max(len(ask.ids) + ask.max_tokens for ask in asks)
        pages = 1 << (longest // PAGE_TOKENS).bit_length()  # rounded up, so that few sizes occur
        key = (clients, asks[0].ignore_eos, pages)
        if key not in self._managers:
            own = ContinuousBatchingConfig(
                max_requests_per_batch=clients,
                num_blocks=(clients + 1) * pages,
                max_batch_tokens=BATCH_TOKENS,
                # Each prompt is used once; shared beginnings would favour one side.
                allow_block_sharing=False,
            )
            self._managers[key] = self.target.init_continuous_batching(config, own)
        return self._managers[key]

    def _continuous(self, ask: Ask, output: Any, due: float) -> Answer:
        if output.error is not None:
            return Answer(ask.index, error=str(output.error))
        ids = tuple(output.generated_tokens)
        chunks = tuple((at - due, 1) for at in output.timestamps[: len(ids)])
        return Answer(ask.index, ids, None, chunks, chunks[-1][0] if chunks else 0.0)


class _Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when tokens come. `generate` hands over the prompt first, then [B] tokens of a step, or [1, n] of
    an assisted round.
    """

    def __init__(self, started: float) -> None:
        self.started, self.prompt = started, True
        self.chunks: list[Chunk] = []

    def put(self, value: torch.Tensor) -> None:
        """Tokens of one step."""
        if not self.prompt:
            self.chunks.append(
                (time.perf_counter() - self.started, value.shape[-1] if value.dim() > 1 else 1)
            )
        self.prompt = False

    def end(self) -> None:
        """Nothing is held back."""


def logit_gap(module: Any, prefix: Sequence[int], one: int, other: int) -> float:
    """How far two tokens' logits are apart after a prefix, in a model's own dtype."""
    ids = torch.tensor([list(prefix)], device=module.device)
    with torch.inference_mode():
        logits = module(ids, attention_mask=torch.ones_like(ids), logits_to_keep=1).logits[0, -1].float()
    return float((logits[one] - logits[other]).abs())


def _in_turn(asks: Sequence[Ask], size: int, answer: Any) -> Block:
    """Batches of `size`, one after the other; a request is due when its batch begins."""
    started = time.perf_counter()
    answers: list[Answer] = []
    for first in range(0, len(asks), size):
        answers += answer(asks[first : first + size], time.perf_counter())
    return Block(tuple(answers), time.perf_counter() - started)


def _counted(answer: Answer, k: int) -> Answer:
    """With counts: a round of assisted generation gives its accepted tokens and one more."""
    tokens = [tokens for _, tokens in answer.chunks]
    return replace(
        answer,
        rounds=len(tokens),
        accepted=sum(count - 1 for count in tokens),
        tested=sum(min(count, k) for count in tokens),
    )


def _results(manager: Any, count: int) -> Iterator[Any]:
    """Finished requests as they come. Raises RuntimeError if the library's thread ends before."""
    while count:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            count -= 1
            yield result
        elif result is None and not manager.is_running():
            raise RuntimeError("continuous batching ended before its requests did")
