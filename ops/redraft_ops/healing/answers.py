"""The target's own answers, as samples: what a cut draft is healed on.

Without a file of prompts the target invents them: a chat model that is shown the beginning of a user's turn
writes one (Xu et al. 2024, "Magpie"). So healing needs no data, and stays on what the target was made for.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft_models.loading import ModelPair
from redraft_queue.records import Sample
from redraft_serving.engine.interface import Emission, GenerationRequest, SamplingParams
from redraft_serving.engine.local import LocalEngine
from redraft_serving.settings import ServingSettings

from redraft_ops.errors import UsageError

DOMAIN = "healing"
ROWS = 48
PROMPT_TOKENS = 64
BATCH = 4 * ROWS
"""Prompts that are tried before looking whether there are enough."""
SHORTEST_PROMPT = 4
"""Invented prompts of fewer tokens, and those cut off at PROMPT_TOKENS, are not used."""
TEMPERATURES = (0.0, 1.0)
"""Answers alternate: greedy traffic and sampled traffic reach different prefixes."""
MARK = "\u241eredraft\u241e"

Told = Callable[[], None]


def answers(
    pair: ModelPair, prompts: Sequence[tuple[int, ...]], max_tokens: int, seed: int, told: Told
) -> list[Sample]:
    """One sample per prompt, in the order of the prompts; `told` is called as each one ends."""
    samples: dict[str, Sample] = {}
    requests = (
        GenerationRequest(
            f"answer-{i}",
            DOMAIN,
            prompt,
            max_tokens,
            SamplingParams(temperature=TEMPERATURES[i % len(TEMPERATURES)], seed=seed + i),
        )
        for i, prompt in enumerate(prompts)
    )
    _generate(pair, requests, lambda sample: samples.__setitem__(sample.request_id, sample), told)
    return [samples[f"answer-{i}"] for i in range(len(prompts)) if f"answer-{i}" in samples]


def invented_prompts(pair: ModelPair, count: int, seed: int, told: Told) -> list[tuple[int, ...]]:
    """`count` different prompts, as token ids of a chat ready to be answered; written by the target
    itself.
    """
    opening = _user_opening(pair.tokenizer)
    found: dict[str, tuple[int, ...]] = {}
    started = 0
    while len(found) < count:
        batch = range(started, started + BATCH)
        for text in _user_turns(pair, opening, batch, seed):
            if len(found) < count and text not in found:
                found[text] = chat_ids(pair.tokenizer, text)
                told()
        started = batch.stop
        if started > 20 * count + 1000:
            raise UsageError(
                f"the target wrote only {len(found)} usable prompts in {started} tries; give --prompts"
            )
    return list(found.values())


def file_prompts(tokenizer: Any, path: Path, count: int) -> list[tuple[int, ...]]:
    """The first `count` prompts of a JSONL file with a `prompt` per line."""
    try:
        with path.open(encoding="utf-8") as lines:
            texts = [json.loads(line)["prompt"] for _, line in zip(range(count), lines, strict=False)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--prompts {path} is not a JSONL file with a prompt per line ({error})") from error
    return [chat_ids(tokenizer, text) for text in texts]


def chat_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    """A user's message in the model's template, ready for the answer; the plain text where there is none."""
    if not tokenizer.chat_template:
        return tuple(tokenizer(text).input_ids)
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer(rendered, add_special_tokens=False).input_ids)


def _user_opening(tokenizer: Any) -> tuple[int, ...]:
    """What the model's template puts in front of a user's message."""
    if not tokenizer.chat_template:
        raise UsageError("the target has no chat template, so it can't invent prompts; give --prompts FILE")
    messages = [{"role": "user", "content": MARK}]
    before, mark, _ = tokenizer.apply_chat_template(messages, tokenize=False).partition(MARK)
    if not mark:
        raise UsageError(
            "the target's chat template changes the message, so it can't invent prompts; give --prompts FILE"
        )
    return tuple(tokenizer(before, add_special_tokens=False).input_ids)


def _user_turns(pair: ModelPair, opening: tuple[int, ...], batch: Iterable[int], seed: int) -> Iterator[str]:
    law = SamplingParams(temperature=1.0, top_p=0.95)
    requests = (
        GenerationRequest(f"prompt-{i:06}", DOMAIN, opening, PROMPT_TOKENS, replace(law, seed=seed + i))
        for i in batch
    )
    samples: list[Sample] = []
    _generate(pair, requests, samples.append, lambda: None)
    for sample in sorted(samples, key=lambda one: one.request_id):
        if sample.finish_reason == "stop" and sample.emitted >= SHORTEST_PROMPT:
            text = str(pair.tokenizer.decode(sample.output_ids, skip_special_tokens=True)).strip()
            if text:
                yield text


def _generate(
    pair: ModelPair, requests: Iterable[GenerationRequest], keep: Callable[[Sample], None], told: Told
) -> None:
    """Run requests through an engine without a draft, as many at a time as it has slots."""
    engine = LocalEngine(
        replace(pair, draft=None), ServingSettings(max_num_seqs=ROWS, max_waiting=ROWS), on_sample=keep
    )
    ended: queue.SimpleQueue[Emission] = queue.SimpleQueue()
    engine.start()
    try:
        running = 0
        for request in requests:
            engine.submit(request, lambda emission: ended.put(emission) if emission.finish_reason else None)
            running += 1
            if running >= ROWS + ROWS // 2:
                running -= _await(ended, told)
        while running:
            running -= _await(ended, told)
    finally:
        engine.stop()


def _await(ended: queue.SimpleQueue[Emission], told: Told) -> int:
    emission = ended.get()
    if emission.error is not None:
        raise UsageError(f"the target failed while it answered: {emission.error}")
    told()
    return 1
